"""The candidate chains of a request, and the rejection of requests that can never be placed."""

from scheduling.core.cells.books import Books
from scheduling.core.cells.errors import RequestError
from scheduling.core.cells.requests import GangRequest
from scheduling.core.messages import sentence


def candidate_chains(books: Books, request: GangRequest) -> list[str]:
    """The chains for a request, in the order in which they are tried.

    Raises:
        RequestError: unknown virtual cluster, pinned cell or device type.
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
    types = request.leaf_types or tuple(sorted(by_type))
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


def _chain_of_pinned(books: Books, request: GangRequest, pinned: str) -> str:
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
