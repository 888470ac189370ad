"""The candidate chains of a request, and the rejection of requests that can never be placed."""

from scheduling.core.cells.books import Books
from scheduling.core.cells.errors import RequestError
from scheduling.core.cells.requests import GangRequest


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
            sentence=f"There is no virtual cluster {request.vc}.",
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
            remedy=f"Use one of {', '.join(sorted(by_type))}.",
            sentence=f"No node has devices of type {' or '.join(types)}.",
        )
    if not request.guaranteed:
        return chains
    owned = [c for c in chains if books.pool(request.vc, c) is not None]
    if not owned and request.leaf_types:
        raise RequestError(
            f"request has leaf cell type {', '.join(types)} which VC {request.vc} does not have",
            field="leaf_types",
            value=types,
            remedy="Use a type of the virtual cluster, or run it opportunistically.",
            sentence=f"Virtual cluster {request.vc} is guaranteed no devices of type"
            f" {' or '.join(types)}.",
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
            remedy=f"Use one of: {known}." if known else "Submit it without a pinned cell.",
            sentence=f"Virtual cluster {request.vc} has no pinned cell {pinned}.",
        )
    if not request.guaranteed:
        raise RequestError(
            f"opportunistic pod not supported to use pinned cell {pinned}",
            field="pinned",
            value=pinned,
            remedy="Run it guaranteed, or leave the pinned cell out.",
            sentence="A pinned cell is for guaranteed jobs only.",
        )
    return chain
