"""Refusals of gangs that only unhealthy or excluded nodes block."""

from collections.abc import Iterator
from contextlib import contextmanager

from scheduling.core.cells.books import CellBooks
from scheduling.core.cells.ledger import ChainLedger
from scheduling.core.cells.preemption import PlacementPlan
from scheduling.core.cells.requests import GangRequest, Wait, WaitCode
from scheduling.core.cells.search import find, find_with_eviction
from scheduling.core.messages import message
from tessera.messages import Listing, Message

MAX_NODES_SHOWN = 3  # nodes named in a sentence


def node_refusal(
    books: CellBooks,
    request: GangRequest,
    chains: list[str],
    nodes: frozenset[str] | None,
    *,
    where: str,
) -> Wait | None:
    """Return the refusal of a gang that only unhealthy or excluded nodes block, or None.

    Args:
        books: books of the cluster; trial changes are undone.
        request: the gang.
        chains: its candidate chains.
        nodes: the allowed nodes; None for all.
        where: description of the searched cells, for the HiveD reason.
    """
    found = _unhealthy_nodes_needed(books, request, chains, nodes)
    if found is not None:
        return _unhealthy_refusal(request, found, where)
    found = _excluded_nodes_needed(books, request, chains, nodes) if nodes is not None else None
    return None if found is None else _excluded_refusal(request, found, where)


def _unhealthy_nodes_needed(
    books: CellBooks,
    request: GangRequest,
    chains: list[str],
    nodes: frozenset[str] | None,
) -> list[str] | None:
    """Return the unhealthy nodes with which the gang would fit if they were healthy, or None."""
    for chain in chains:
        ledger = books.rosters[chain].ledger
        buddy, topology = ledger.buddy, ledger.topology
        if not any(buddy.bad[topology.base[topology.levels] :]):
            continue
        with _assume_healthy(ledger) as bad:
            plan = _any_plan(books, request, chain, nodes)
        if plan is None:
            continue
        used = list(dict.fromkeys(s.node for s in plan.spots if s.node in bad))
        return [topology.node_names[node] for node in used or [min(bad)]]
    return None


@contextmanager
def _assume_healthy(ledger: ChainLedger) -> Iterator[dict[int, int]]:
    bad = {
        node: mask
        for node, mask in enumerate(ledger.healthy)
        if mask != ledger.topology.shapes[node].full
    }
    for node in bad:
        ledger.set_healthy(node, ledger.topology.shapes[node].full)
    try:
        yield bad
    finally:
        for node, mask in bad.items():
            ledger.set_healthy(node, mask)


def _excluded_nodes_needed(
    books: CellBooks, request: GangRequest, chains: list[str], nodes: frozenset[str]
) -> list[str] | None:
    """Return the excluded nodes with which the gang would fit, or None."""
    for chain in chains:
        plan = _any_plan(books, request, chain, None)
        if plan is not None:
            names = dict.fromkeys(
                books.topology.chains[chain].node_names[s.node] for s in plan.spots
            )
            return [name for name in names if name not in nodes] or list(names)
    return None


def _any_plan(
    books: CellBooks, request: GangRequest, chain: str, nodes: frozenset[str] | None
) -> PlacementPlan | None:
    plan = find(books, request, chain, nodes)
    return plan if plan is not None else find_with_eviction(books, request, chain, nodes)


def _unhealthy_refusal(request: GangRequest, nodes: list[str], where: str) -> Wait:
    return Wait(
        request=request,
        code=WaitCode.CELLS_UNHEALTHY,
        message=message(
            "node-unhealthy" if len(nodes) == 1 else "nodes-unhealthy", names=_names(nodes)
        ),
        reason=f"have to use at least one bad node {nodes[0]} when scheduling {where}",
        unblock=tuple(message("repair-node", node=node) for node in nodes[:MAX_NODES_SHOWN]),
        nodes=tuple(nodes),
    )


def _excluded_refusal(request: GangRequest, nodes: list[str], where: str) -> Wait:
    return Wait(
        request=request,
        code=WaitCode.NO_CELL_OF_LEVEL,
        message=message(
            "node-excluded" if len(nodes) == 1 else "nodes-excluded", names=_names(nodes)
        ),
        reason=f"have to use at least one non-suggested node {nodes[0]} when scheduling {where}",
        unblock=(message("submit-again"),),
        nodes=tuple(nodes),
    )


def _names(names: list[str]) -> Listing | Message:
    shown = Listing(tuple(names[:MAX_NODES_SHOWN]))
    if len(names) <= MAX_NODES_SHOWN:
        return shown
    return message("nodes-and-more", names=shown, more=len(names) - MAX_NODES_SHOWN)
