"""Why a gang waits: which quota, which level, which nodes and gangs are in the way.

What would let it start is found by trial, on demand (``remedies``).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from scheduling.core.cells.gangs import Roster
from scheduling.core.cells.hindering import hindering_nodes
from scheduling.core.cells.ledger import ChainLedger
from scheduling.core.cells.pool import Pool
from scheduling.core.cells.requests import GangRequest, Wait, WaitCode
from scheduling.core.cells.search import items_of

if TYPE_CHECKING:
    from scheduling.core.cells.engine import CellEngine

NAMED = 20  # gangs named in blocked_by


def wait(
    engine: "CellEngine",
    request: GangRequest,
    chains: list[str],
    nodes: frozenset[str] | None,
) -> Wait:
    """The refusal of a gang that fits in none of its chains."""
    found = hindrance(engine, request, chains, nodes)
    if found is not None:
        return found
    reason = f"insufficient capacity when scheduling {_where(request)}"
    if request.guaranteed:
        return _guarantee_in_use(engine, request, chains, reason)
    return _no_idle(
        engine, request, chains, reason,
        idle_in=lambda name: idle_devices(engine.rosters[name].ledger),
    )  # fmt: skip


class Recount:
    """Refusals with the numbers of the books as they are now, while these do not change.

    The gangs that hold devices are not listed again: the text depends only on whether any exist.
    """

    def __init__(self, engine: "CellEngine") -> None:
        self._engine = engine
        self._free: dict[tuple[object, ...], int] = {}
        self._idle: dict[str, int] = {}

    def of(self, refusal: Wait, chains: list[str]) -> Wait:
        """The refusal with new numbers, if it has any; ``blocked_by`` stays as it is."""
        if not refusal.counts:
            return refusal
        engine, request = self._engine, refusal.request
        if not request.guaranteed:
            return _no_idle(
                engine, request, chains, refusal.reason,
                idle_in=self._idle_in, blocked_by=refusal.blocked_by,
            )  # fmt: skip
        key = (request.vc, request.pinned, *chains)
        if key not in self._free:
            self._free[key] = _free_in(engine, request, chains)
        is_used = any(
            roster.has_at_least(pool.number, request.priority)
            for roster, pool in _pools(engine, request, chains)
        )
        return _of_quota(
            engine, request, chains, refusal.reason,
            free=self._free[key], is_used=is_used, blocked_by=refusal.blocked_by,
        )  # fmt: skip

    def _idle_in(self, chain: str) -> int:
        if chain not in self._idle:
            self._idle[chain] = idle_devices(self._engine.rosters[chain].ledger)
        return self._idle[chain]


def hindrance(
    engine: "CellEngine",
    request: GangRequest,
    chains: list[str],
    nodes: frozenset[str] | None,
) -> Wait | None:
    """Why a gang that fits nowhere would not start by the end of others alone; else None."""
    hopeless = never(engine, request, chains)
    if hopeless is not None:
        return hopeless
    return hindering_nodes(engine, request, chains, nodes, where=_where(request))


def _where(request: GangRequest) -> str:
    return f"in VC {request.vc}" if request.guaranteed else "in physical cluster"


def never(engine: "CellEngine", request: GangRequest, chains: list[str]) -> Wait | None:
    """What no amount of waiting would change."""
    reason = f"insufficient capacity when scheduling {_where(request)}"
    if not chains:
        return Wait(
            request=request,
            code=WaitCode.UNKNOWN_TYPE,
            text=f"Virtual cluster {request.vc} has no cells of its own.",
            reason=reason,
            unblock=("Ask for a quota.", *_opportunistic(engine, request)),
        )
    largest = max(m.leaf_count for m in request.members)
    chain = max(chains, key=lambda c: engine.topology.chains[c].node_size)
    node = engine.topology.chains[chain].node_size
    if largest > node:
        return Wait(
            request=request,
            code=WaitCode.EXCEEDS_VC_MAX,
            text=f"One instance wants {devices(largest)}; a node has {node}.",
            reason=reason,
            unblock=(f"Ask for at most {devices(node)} an instance, and for more instances.",),
            chain=chain,
            level=engine.topology.chains[chain].types[engine.topology.chains[chain].node_level],
        )
    if all(items_of(engine.topology.chains[c], request) is None for c in chains):
        asked = (request.within, *(m.within_level for m in request.members))
        level = next(name for name in asked if name is not None)
        known = engine.topology.chains[chain]
        names = ", ".join(known.types[1:])
        return Wait(
            request=request,
            code=WaitCode.NO_CELL_OF_LEVEL,
            text=f"No chain in question has a level {level}.",
            reason=reason,
            unblock=(f"Name one of {names}.",),
            chain=chain,
            level=level,
        )
    return _too_wide(engine, request, chains, reason) or _too_large(
        engine, request, chains, reason
    )


def _too_wide(
    engine: "CellEngine", request: GangRequest, chains: list[str], reason: str
) -> Wait | None:
    """A gang that wants to be inside one cell, and no cell of that level has so many devices."""
    if request.within is None:
        return None
    most, chain, level = 0, chains[0], ""
    for name in chains:
        topology = engine.topology.chains[name]
        found = topology.level_named(request.within)
        if found is not None and topology.sizes[max(found, topology.node_level)][1] > most:
            found = max(found, topology.node_level)
            most, chain, level = topology.sizes[found][1], name, topology.types[found]
    if request.leaf_count <= most:
        return None
    return Wait(
        request=request,
        code=WaitCode.EXCEEDS_VC_MAX,
        text=f"The job wants {devices(request.leaf_count)} in one {level}; one has {most}.",
        reason=reason,
        unblock=(f"Ask for at most {devices(most)}, or let it spread.",),
        chain=chain,
        level=level,
    )


def _too_large(
    engine: "CellEngine", request: GangRequest, chains: list[str], reason: str
) -> Wait | None:
    chain = max(chains, key=lambda c: most_devices(engine, request, c))
    most = most_devices(engine, request, chain)
    if request.leaf_count <= most:
        return None
    owner = f"virtual cluster {request.vc}" if request.guaranteed else "the cluster"
    there, other = "of one chain", _opportunistic(engine, request)
    if request.pinned is not None:
        owner, there = quota_in_words(engine, request, chain), "in all"
        other = ("Run it outside the pinned cell.",)
    ask = f"Ask for at most {devices(most)}."
    return Wait(
        request=request,
        code=WaitCode.EXCEEDS_VC_MAX,
        text=f"The job wants {devices(request.leaf_count)}; {owner} has {most} {there}.",
        reason=reason,
        unblock=(ask, *other) if request.guaranteed else (ask,),
        chain=chain,
        quota=quota_in_words(engine, request, chain) if request.guaranteed else "",
    )


def _opportunistic(engine: "CellEngine", request: GangRequest) -> tuple[str, ...]:
    """The advice to run without a quota, where the cluster has as many devices of one chain."""
    most = max((chain.leaf_count for chain in engine.topology.chains.values()), default=0)
    return ("Run it opportunistically.",) if request.leaf_count <= most else ()


def most_devices(engine: "CellEngine", request: GangRequest, chain: str) -> int:
    """What jobs like one may have in a chain at most: the quota there, or all of it."""
    topology = engine.topology.chains[chain]
    if not request.guaranteed:
        return topology.leaf_count
    pool = engine.pool(request.vc, chain, request.pinned)
    if pool is None:
        return 0
    if pool.pinned is not None:
        return sum(mask.bit_count() for mask in pool.masks.values())
    return sum(len(slots) * topology.sizes[level][1] for level, slots in enumerate(pool.slots))


class Quota(NamedTuple):
    """What a virtual cluster is guaranteed in some chains.

    Attributes:
        chain: the first one in which it has more than in those before.
        total: devices.
        words: as ``quota_in_words``.
    """

    chain: str
    total: int
    words: str


def _quota(engine: "CellEngine", request: GangRequest, chains: list[str]) -> Quota:
    """The quota of a gang in all these chains; follows from the specification alone."""
    key = (request.vc, request.pinned, *chains)
    known = engine.quotas.get(key)
    if known is not None:
        return known
    chain, total = chains[0], 0
    for name in chains:
        most = most_devices(engine, request, name)
        chain = name if most > total else chain
        total += most
    found = Quota(chain, total, _quotas_in_words(engine, request, chains))
    if request.pinned is None:
        engine.quotas[key] = found
    return found


def _pools(
    engine: "CellEngine", request: GangRequest, chains: list[str]
) -> list[tuple[Roster, Pool]]:
    found = ((engine.rosters[c], engine.pool(request.vc, c, request.pinned)) for c in chains)
    return [(roster, pool) for roster, pool in found if pool is not None]


def _free_in(engine: "CellEngine", request: GangRequest, chains: list[str]) -> int:
    return sum(
        free_devices(roster.ledger, pool) for roster, pool in _pools(engine, request, chains)
    )


def _guarantee_in_use(
    engine: "CellEngine", request: GangRequest, chains: list[str], reason: str
) -> Wait:
    holders = [
        ranked
        for roster, pool in _pools(engine, request, chains)
        for ranked in roster.largest(pool.number, NAMED, priority=request.priority)
    ]
    return _of_quota(
        engine, request, chains, reason,
        free=_free_in(engine, request, chains),
        is_used=bool(holders),
        blocked_by=_largest(holders),
    )  # fmt: skip


def _of_quota(
    engine: "CellEngine",
    request: GangRequest,
    chains: list[str],
    reason: str,
    *,
    free: int,
    is_used: bool,
    blocked_by: tuple[str, ...],
) -> Wait:
    """The refusal of a gang in whose quota so many devices are free."""
    chain, total, mine = _quota(engine, request, chains)
    size = max([m.leaf_count for m in request.members])
    level = _level_of(engine, chain, request)
    apart = not is_used or (
        free >= request.leaf_count and (size > 1 or request.within is not None)
    )
    what = (
        f"{free} of their {devices(total)} are free, but not together as {shape(request)}"
        f" on level {level}"
        if apart
        else f"{total - free} of their {devices(total)} are in use, and it wants {shape(request)}"
    )
    return Wait(
        request=request,
        code=WaitCode.NO_CELL_OF_LEVEL if apart else WaitCode.VC_GUARANTEE_IN_USE,
        text=f"Virtual cluster {request.vc} is guaranteed {mine}; {what}.",
        reason=reason,
        blocked_by=blocked_by,
        unblock=("Run it opportunistically.",),
        chain=chain,
        level=level,
        quota=mine,
        counts=True,
        free=free,
    )


def _level_of(engine: "CellEngine", chain: str, request: GangRequest) -> str:
    """The level that the gang must be inside, or the lowest that can hold its instances."""
    topology = engine.topology.chains[chain]
    whole = topology.level_named(request.within) if request.within is not None else None
    if whole is not None:
        return topology.types[max(whole, topology.node_level)]
    size = max(m.leaf_count for m in request.members)
    level = next(
        (low for low in range(1, topology.node_level) if topology.sizes[low][1] >= size),
        topology.node_level,
    )
    return topology.types[level]


def quota_in_words(engine: "CellEngine", request: GangRequest, chain: str) -> str:
    """What a virtual cluster is guaranteed in a chain: ``2 × node, 1 × socket``."""
    if request.pinned is not None:
        return f"the pinned cell {request.pinned}"
    cells: dict[str, int] = {}
    for quota in engine.spec.virtual_clusters[request.vc].quotas:
        if quota.chain == chain and quota.count:
            cells[quota.level] = cells.get(quota.level, 0) + quota.count
    return ", ".join(f"{count} × {level}" for level, count in cells.items()) or "nothing there"


def _quotas_in_words(engine: "CellEngine", request: GangRequest, chains: list[str]) -> str:
    """What it is guaranteed in all these chains together, as their devices are counted."""
    if request.pinned is not None:
        return quota_in_words(engine, request, chains[0])
    given = [
        quota_in_words(engine, request, c) for c in chains if most_devices(engine, request, c)
    ]
    return ", ".join(given) or "nothing there"


def free_devices(ledger: ChainLedger, pool: Pool) -> int:
    """Devices of a quota that no guaranteed gang uses, apart or together."""
    topology = ledger.topology
    used = sum(count * bits.bit_count() for count, bits in enumerate(pool.used))
    empty = sum(count * len(keys) for count, keys in enumerate(pool.empty))
    unbound = sum(n * topology.sizes[level][1] for level, n in enumerate(pool.unbound))
    return used + empty + unbound


def _largest(ranked: list[tuple[int, str]]) -> tuple[str, ...]:
    """Names of the largest gangs of several chains, by name among equals."""
    return tuple([name for _, name in sorted(ranked)[:NAMED]])


def devices(count: int) -> str:
    """A number of devices in words."""
    return "1 device" if count == 1 else f"{count} devices"


def shape(request: GangRequest) -> str:
    """What a gang wants, in words: ``2 instances of 4 devices``."""
    return " and ".join(
        f"{'1 instance' if m.count == 1 else f'{m.count} instances'} of {devices(m.leaf_count)}"
        for m in request.members
    )


def _no_idle(
    engine: "CellEngine",
    request: GangRequest,
    chains: list[str],
    reason: str,
    *,
    idle_in: Callable[[str], int],
    blocked_by: tuple[str, ...] | None = None,
) -> Wait:
    """All that is in use is in its way, guaranteed or not; a gang stays on one chain."""
    largest, asked = max([m.leaf_count for m in request.members]), request.leaf_count
    known = engine.topology.chains
    able = [
        name
        for name in chains
        if known[name].node_size >= largest and known[name].leaf_count >= asked
    ] or chains
    chain = max(able, key=idle_in)
    if blocked_by is None:
        blocked_by = _largest(
            [ranked for name in able for ranked in engine.rosters[name].largest(None, NAMED)]
        )
    level, idle = _level_of(engine, chain, request), idle_in(chain)
    kind = known[chain].leaf_type
    there = kind if len(engine.topology.leaf_types[kind]) == 1 else f"{kind} in {chain}"
    are = f"{devices(idle)} of {there} {'is' if idle == 1 else 'are'}"
    what = (
        f"{are} idle, but not as {shape(request)} on level {level}."
        if idle
        else f"No device of {there} is idle, and it wants {shape(request)} on level {level}."
    )
    return Wait(
        request=request,
        code=WaitCode.OPPORTUNISTIC_NO_IDLE,
        text=what,
        reason=reason,
        blocked_by=blocked_by,
        chain=chain,
        level=level,
        counts=True,
        free=idle,
    )


def idle_devices(ledger: ChainLedger) -> int:
    """Devices of a chain that no gang uses, apart or together."""
    return sum(free * bits.bit_count() for (_, free), bits in ledger.idle.items())
