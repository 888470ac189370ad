"""Refusals of jobs with several roles that can never run at once.

The check is an upper bound, not a search: the roles that are restricted to the same chains must
not need more devices than these chains have for them.
"""

from collections.abc import Sequence
from typing import NamedTuple

from scheduling.core.cells.books import Books
from scheduling.core.cells.explain import devices, most_devices, never_fits, quota_of
from scheduling.core.cells.requests import GangRequest, Wait, WaitCode
from scheduling.core.messages import message
from tessera.messages import Listing, Message


class Location(NamedTuple):
    """A chain, or a pinned cell in a chain."""

    chain: str
    pinned: str | None


def never_fit_together(
    books: Books, parts: Sequence[tuple[GangRequest, Sequence[str]]]
) -> Wait | None:
    """The refusal of roles that cannot run at once even on an idle cluster; None if none is found.

    Args:
        books: of the cluster; only guarantees and health matter.
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
    books: Books, inside: Sequence[GangRequest], reach: frozenset[Location]
) -> Wait | None:
    """The refusal of roles that need more devices than their locations have, or have healthy."""
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
    """The owner of the devices for a request."""
    if not request.guaranteed:
        return message("the-cluster")
    pinned = {place.pinned for place in reach}
    if len(pinned) == 1 and None not in pinned:
        return message("the-pinned-cell", pinned=str(request.pinned))
    return message("the-virtual-cluster", name=request.vc)
