"""The candidate chains of a request, and the rejection of requests that can never be placed.

The check of several roles is an upper bound, not a search: roles that are restricted to the same
chains must not need more devices than these chains contain for them.
"""

from collections.abc import Sequence
from typing import NamedTuple

from scheduling.core.cells.books import CellBooks
from scheduling.core.cells.errors import RequestError
from scheduling.core.cells.explain import devices, most_devices, never_fits, quota_of
from scheduling.core.cells.requests import GangRequest, Wait, WaitCode
from scheduling.core.device_types import usable
from scheduling.core.messages import message, sentence
from tessera.messages import Listing, Message


def candidate_chains(books: CellBooks, request: GangRequest) -> list[str]:
    """Return the chains for a request, in the order in which they are tried.

    Raises:
        RequestError: the virtual cluster, pinned cell or device type is unknown.
    """
    if request.vc not in books.spec.virtual_clusters:
        raise RequestError(
            f"VC {request.vc} does not exist",
            field="vc",
            value=request.vc,
            remedy=f"use one of {sorted(books.spec.virtual_clusters)}",
            sentence=sentence("no-virtual-cluster", vc=request.vc),
        )
    if request.pinned is not None:
        return [_chain_of_pinned(books, request, request.pinned)]
    by_type = books.topology.leaf_types
    types = request.leaf_types or usable(sorted(by_type))
    chains = list(dict.fromkeys(c for leaf in types for c in by_type.get(leaf, ())))
    if not chains:
        raise RequestError(
            f"request has leaf cell type {', '.join(types)} which the whole cluster does not have",
            field="leaf_types",
            value=types,
            remedy=sentence("use-one-of", names=", ".join(sorted(by_type))),
            sentence=sentence("no-node-of-type", types=" or ".join(types)),
        )
    if not request.guaranteed:
        return chains
    owned = [c for c in chains if books.pool(request.vc, c) is not None]
    if not owned and request.leaf_types:
        raise RequestError(
            f"request has leaf cell type {', '.join(types)} which VC {request.vc} does not have",
            field="leaf_types",
            value=types,
            remedy=sentence("use-type-of-cluster-or-borrow"),
            sentence=sentence("type-not-guaranteed", vc=request.vc, types=" or ".join(types)),
        )
    return owned


def _chain_of_pinned(books: CellBooks, request: GangRequest, pinned: str) -> str:
    chain = books.pinned_chain(request.vc, pinned)
    if chain is None:
        known = ", ".join(sorted(books.spec.virtual_clusters[request.vc].pinned))
        raise RequestError(
            f"VC {request.vc} does not have pinned cell {pinned}",
            field="pinned",
            value=pinned,
            remedy=sentence("choices", names=known) if known else sentence("submit-without-pin"),
            sentence=sentence("no-pinned-cell", vc=request.vc, pinned=pinned),
        )
    if not request.guaranteed:
        raise RequestError(
            f"opportunistic pod not supported to use pinned cell {pinned}",
            field="pinned",
            value=pinned,
            remedy=sentence("use-guaranteed-or-no-pin"),
            sentence=sentence("pin-needs-guaranteed"),
        )
    return chain


class Location(NamedTuple):
    """A chain, or a pinned cell in a chain."""

    chain: str
    pinned: str | None


def never_fit_together(
    books: CellBooks, parts: Sequence[tuple[GangRequest, Sequence[str]]]
) -> Wait | None:
    """Return the refusal of roles that cannot run together even on an idle cluster, or None.

    Args:
        books: books of the cluster; only guarantees and health matter.
        parts: the roles of a job, each with its candidate chains.
    """
    if len(parts) < 2:
        return None
    for request, chains in parts:
        alone = never_fits(books, request, list(chains))
        if alone is not None:
            return alone
    places = [
        frozenset(Location(chain, request.pinned) for chain in chains) for request, chains in parts
    ]
    # The check of all roles together has the best explanation; then roles with equal locations.
    for reach in dict.fromkeys([frozenset().union(*places), *places]):
        inside = [
            request for (request, _), place in zip(parts, places, strict=True) if place <= reach
        ]
        if len(inside) > 1:
            found = _capacity_refusal(books, inside, reach)
            if found is not None:
                return found
    return None


def _capacity_refusal(
    books: CellBooks, inside: Sequence[GangRequest], reach: frozenset[Location]
) -> Wait | None:
    """Return the refusal of roles whose locations have too few (healthy) devices, or None."""
    wanted = sum(request.leaf_count for request in inside)
    most = sound = 0
    for place in reach:
        like = next(request for request in inside if request.pinned == place.pinned)
        quota = most_devices(books, like, place.chain)
        most += quota
        sound += min(quota, sum(map(int.bit_count, books.rosters[place.chain].ledger.healthy)))
    if wanted <= sound:
        return None
    first, chain = inside[0], min(place.chain for place in reach)
    kinds = Listing(tuple(sorted({books.topology.chains[p.chain].leaf_type for p in reach})), "or")
    where = f"in VC {first.vc}" if first.guaranteed else "in physical cluster"
    is_unhealthy = wanted <= most
    return Wait(
        request=first,
        code=WaitCode.CELLS_UNHEALTHY if is_unhealthy else WaitCode.EXCEEDS_VC_MAX,
        message=message("roles-need-healthy", wanted=devices(wanted), kinds=kinds, sound=sound)
        if is_unhealthy
        else message(
            "roles-too-large",
            wanted=devices(wanted),
            kinds=kinds,
            owner=_owner(first, reach),
            most=most,
        ),
        reason=f"insufficient capacity when scheduling {where}",
        unblock=()
        if is_unhealthy
        else (message("ask-at-most-of-kinds", most=devices(most), kinds=kinds),),
        chain=chain,
        quota=quota_of(books, first, chain) if first.guaranteed else "",
    )


def _owner(request: GangRequest, reach: frozenset[Location]) -> Message:
    """Return the owner of the devices for a request."""
    if not request.guaranteed:
        return message("the-cluster")
    pinned = {place.pinned for place in reach}
    if len(pinned) == 1 and None not in pinned:
        return message("the-pinned-cell", pinned=str(request.pinned))
    return message("the-virtual-cluster", name=request.vc)
