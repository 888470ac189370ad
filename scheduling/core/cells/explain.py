"""Why a gang waits: which quota, which level, who is in the way, and what would let it start."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from scheduling.core.cells.gangs import Gang
from scheduling.core.cells.ledger import ChainLedger
from scheduling.core.cells.pool import Pool
from scheduling.core.cells.preemption import Plan
from scheduling.core.cells.requests import GangRequest, Wait, WaitCode

if TYPE_CHECKING:
    from scheduling.core.cells.engine import CellEngine

NAMED = 20  # gangs named in blocked_by


def readdress(known: Wait, request: GangRequest) -> Wait:
    """The same refusal for another gang of the same shape."""
    return replace(
        known, request=request, blocked_by=tuple(g for g in known.blocked_by if g != request.group)
    )


def wait(
    engine: "CellEngine",
    request: GangRequest,
    chains: list[str],
    nodes: frozenset[str] | None,
) -> Wait:
    """The refusal of a gang that fits in none of its chains."""
    where = f"in VC {request.vc}" if request.guaranteed else "in physical cluster"
    never = _never(engine, request, chains)
    if never is not None:
        return never
    unhealthy = _if_healthy(engine, request, chains, nodes)
    if unhealthy is not None:
        node = unhealthy
        return Wait(
            request=request,
            code=WaitCode.CELLS_UNHEALTHY,
            text=f"It would fit if node {node} were healthy.",
            reason=f"have to use at least one bad node {node} when scheduling {where}",
            unblock=(f"repair node {node}",),
        )
    if nodes is not None:
        outside = _if_anywhere(engine, request, chains, nodes)
        if outside is not None:
            return Wait(
                request=request,
                code=WaitCode.NO_CELL_OF_LEVEL,
                text=f"It would fit on node {outside}, which is excluded for it.",
                reason=f"have to use at least one non-suggested node {outside} when scheduling"
                f" {where}",
                unblock=(f"allow node {outside}",),
            )
    reason = f"insufficient capacity when scheduling {where}"
    if request.guaranteed:
        return _guarantee_in_use(engine, request, chains, reason)
    return _no_idle(engine, request, chains, reason)


def _never(engine: "CellEngine", request: GangRequest, chains: list[str]) -> Wait | None:
    """What no amount of waiting would change."""
    where = f"in VC {request.vc}" if request.guaranteed else "in physical cluster"
    reason = f"insufficient capacity when scheduling {where}"
    if not chains:
        return Wait(
            request=request,
            code=WaitCode.UNKNOWN_TYPE,
            text=f"Virtual cluster {request.vc} has no cells of its own.",
            reason=reason,
            unblock=("give the virtual cluster a quota", "run it opportunistically"),
        )
    largest = max(m.leaf_count for m in request.members)
    node = max(engine.topology.chains[c].node_size for c in chains)
    if largest > node:
        return Wait(
            request=request,
            code=WaitCode.EXCEEDS_VC_MAX,
            text=f"One instance wants {largest} devices; a node has {node}.",
            reason=reason,
            unblock=(f"ask for at most {node} devices an instance and more instances",),
        )
    if all(engine.items(c, request) is None for c in chains):
        level = next(m.within_level for m in request.members if m.within_level is not None)
        return Wait(
            request=request,
            code=WaitCode.NO_CELL_OF_LEVEL,
            text=f"No chain in question has a level {level}.",
            reason=reason,
            unblock=("name a level of the chain",),
        )
    most = max(_quota(engine, request, c) for c in chains)
    if request.leaf_count > most:
        owner = f"virtual cluster {request.vc}" if request.guaranteed else "the cluster"
        return Wait(
            request=request,
            code=WaitCode.EXCEEDS_VC_MAX,
            text=f"The gang wants {request.leaf_count} devices; {owner} has {most} of one chain.",
            reason=reason,
            unblock=(f"ask for at most {most} devices", "run it opportunistically")
            if request.guaranteed
            else (f"ask for at most {most} devices",),
        )
    return None


def _quota(engine: "CellEngine", request: GangRequest, chain: str) -> int:
    topology = engine.topology.chains[chain]
    if not request.guaranteed:
        return topology.leaf_count
    pool = engine.pool(request.vc, chain, request.pinned)
    if pool is None:
        return 0
    if pool.pinned is not None:
        return sum(mask.bit_count() for mask in pool.masks.values())
    return sum(len(slots) * topology.sizes[level][1] for level, slots in enumerate(pool.slots))


def _if_healthy(
    engine: "CellEngine",
    request: GangRequest,
    chains: list[str],
    nodes: frozenset[str] | None,
) -> str | None:
    """A bad node without whose badness the gang would fit, or None."""
    for chain in chains:
        ledger = engine.rosters[chain].ledger
        buddy, topology = ledger.buddy, ledger.topology
        if not any(buddy.bad[topology.base[topology.levels] :]):
            continue
        with _all_healthy(ledger) as bad:
            plan = _any_plan(engine, request, chain, nodes)
        if plan is None:
            continue
        used = [s.node for s in plan.spots if s.node in bad]
        return ledger.topology.node_names[used[0] if used else min(bad)]
    return None


@contextmanager
def _all_healthy(ledger: ChainLedger) -> Iterator[dict[int, int]]:
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


def _if_anywhere(
    engine: "CellEngine", request: GangRequest, chains: list[str], nodes: frozenset[str]
) -> str | None:
    for chain in chains:
        plan = _any_plan(engine, request, chain, None)
        if plan is not None:
            names = engine.topology.chains[chain].node_names
            used = [names[s.node] for s in plan.spots if names[s.node] not in nodes]
            return used[0] if used else names[plan.spots[0].node]
    return None


def _any_plan(
    engine: "CellEngine", request: GangRequest, chain: str, nodes: frozenset[str] | None
) -> Plan | None:
    plan = engine.find(request, chain, nodes)
    return plan if plan is not None else engine.find_with_eviction(request, chain, nodes)


def _guarantee_in_use(
    engine: "CellEngine", request: GangRequest, chains: list[str], reason: str
) -> Wait:
    holders: list[Gang] = []
    used = total = fragments = 0
    for chain in chains:
        pool = engine.pool(request.vc, chain, request.pinned)
        if pool is None:
            continue
        roster = engine.rosters[chain]
        gangs = roster.gangs.get(pool.number, {}).values()
        holders += [g for g in gangs if g.request.priority >= request.priority]
        total += _quota(engine, request, chain)
        used += sum(
            (mask & roster.ledger.guaranteed[roster.ledger.node_of(key)]).bit_count()
            for key, mask in pool.masks.items()
        )
        fragments += _free_devices(roster.ledger, pool)
    holders.sort(key=lambda g: (-g.size, g.name))
    names = tuple(g.name for g in holders[:NAMED])
    size = max(m.leaf_count for m in request.members)
    if not names or (fragments >= request.leaf_count and size > 1):
        code = WaitCode.NO_CELL_OF_LEVEL
        text = (
            f"{fragments} of {total} devices of virtual cluster {request.vc} are free, but not"
            f" {_shape(request)} together."
        )
    else:
        code = WaitCode.VC_GUARANTEE_IN_USE
        text = (
            f"Virtual cluster {request.vc} uses {used} of its {total} devices; the gang wants"
            f" {_shape(request)}."
        )
    return Wait(
        request=request,
        code=code,
        text=text,
        reason=reason,
        blocked_by=names,
        unblock=(*_smallest_end(holders, request), "run it opportunistically"),
    )


def _free_devices(ledger: ChainLedger, pool: Pool) -> int:
    topology = ledger.topology
    used = sum(count * bits.bit_count() for count, bits in enumerate(pool.used))
    empty = sum(count * len(keys) for count, keys in enumerate(pool.empty))
    unbound = sum(n * topology.sizes[level][1] for level, n in enumerate(pool.unbound))
    return used + empty + unbound


def _shape(request: GangRequest) -> str:
    return " + ".join(f"{m.count} x {m.leaf_count}" for m in request.members)


def _smallest_end(holders: list[Gang], request: GangRequest) -> tuple[str, ...]:
    """The smallest gang that alone has as many devices as are wanted."""
    wanted = request.leaf_count
    enough = [g for g in holders if g.size >= wanted]
    return (f"{enough[-1].name} ends",) if enough else ()


def _no_idle(engine: "CellEngine", request: GangRequest, chains: list[str], reason: str) -> Wait:
    idle = sum(
        free * bits.bit_count()
        for chain in chains
        for (_, free), bits in engine.rosters[chain].ledger.idle.items()
    )
    holders = [
        gang for chain in chains for gang in engine.rosters[chain].gangs.get(-1, {}).values()
    ]
    holders.sort(key=lambda g: (-g.size, g.name))
    return Wait(
        request=request,
        code=WaitCode.OPPORTUNISTIC_NO_IDLE,
        text=f"{idle} devices are idle, but not {_shape(request)} on nodes as wanted.",
        reason=reason,
        blocked_by=tuple(g.name for g in holders[:NAMED]),
        unblock=_smallest_end(holders, request),
    )
