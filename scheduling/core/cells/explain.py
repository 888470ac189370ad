"""Refusals: the reason why a gang waits, with the quota, level, nodes and gangs that block it.

``remedies`` finds the changes that let it start, on demand.
"""

from collections.abc import Callable
from functools import lru_cache

from scheduling.core.cells.books import CellBooks, Guarantee
from scheduling.core.cells.gangs import Roster
from scheduling.core.cells.ledger import ChainLedger
from scheduling.core.cells.pool import Pool
from scheduling.core.cells.requests import GangRequest, Member, Wait, WaitCode
from scheduling.core.cells.search import items_of
from scheduling.core.cells.unhealthy_blockers import node_refusal
from scheduling.core.messages import message
from tessera.messages import Listing, Message, Parameter

MAX_BLOCKERS = 20  # gangs named in blocked_by


def refusal_of(
    books: CellBooks,
    request: GangRequest,
    chains: list[str],
    nodes: frozenset[str] | None,
) -> Wait:
    """Build the refusal of a gang that fits in none of its chains."""
    found = lasting_refusal(books, request, chains, nodes)
    if found is not None:
        return found
    reason = f"insufficient capacity when scheduling {_where(request)}"
    if request.guaranteed:
        return _guaranteed_refusal(books, request, chains, reason)
    return _opportunistic_refusal(
        books, request, chains, reason,
        idle_in=lambda name: idle_devices(books.rosters[name].ledger),
    )  # fmt: skip


class Recount:
    """Updates the device counts of refusals; the books must not change meanwhile.

    ``blocked_by`` is not updated: the message depends only on whether such gangs exist.
    """

    def __init__(self, books: CellBooks) -> None:
        self._books = books
        self._free: dict[tuple[object, ...], int] = {}
        self._idle: dict[str, int] = {}

    def update(self, refusal: Wait, chains: list[str]) -> Wait:
        """Update the device counts of a refusal, if it has any."""
        if not refusal.counts:
            return refusal
        books, request = self._books, refusal.request
        if not request.guaranteed:
            return _opportunistic_refusal(
                books, request, chains, refusal.reason,
                idle_in=self._idle_in, blocked_by=refusal.blocked_by,
            )  # fmt: skip
        key = (request.vc, request.pinned, *chains)
        if key not in self._free:
            self._free[key] = _free_in(books, request, chains)
        is_used = any(
            roster.has_at_least(pool.number, request.priority)
            for roster, pool in _pools(books, request, chains)
        )
        return _quota_refusal(
            books, request, chains, refusal.reason,
            free=self._free[key], is_used=is_used, blocked_by=refusal.blocked_by,
        )  # fmt: skip

    def _idle_in(self, chain: str) -> int:
        if chain not in self._idle:
            self._idle[chain] = idle_devices(self._books.rosters[chain].ledger)
        return self._idle[chain]


def lasting_refusal(
    books: CellBooks,
    request: GangRequest,
    chains: list[str],
    nodes: frozenset[str] | None,
) -> Wait | None:
    """Return the refusal of a gang that would wait even without other gangs, or None."""
    hopeless = never_fits(books, request, chains)
    if hopeless is not None:
        return hopeless
    return node_refusal(books, request, chains, nodes, where=_where(request))


def _where(request: GangRequest) -> str:
    return f"in VC {request.vc}" if request.guaranteed else "in physical cluster"


def never_fits(books: CellBooks, request: GangRequest, chains: list[str]) -> Wait | None:
    """Return the refusal of a gang that never fits on an empty, healthy cluster, or None."""
    reason = f"insufficient capacity when scheduling {_where(request)}"
    if not chains:
        return Wait(
            request=request,
            code=WaitCode.UNKNOWN_TYPE,
            message=message("no-quota", vc=request.vc),
            reason=reason,
            unblock=(message("ask-quota"), *_opportunistic_advice(books, request)),
        )
    largest = max(m.leaf_count for m in request.members)
    chain = max(chains, key=lambda c: books.topology.chains[c].node_size)
    node = books.topology.chains[chain].node_size
    if largest > node:
        return Wait(
            request=request,
            code=WaitCode.EXCEEDS_VC_MAX,
            message=message("instance-too-large", wanted=devices(largest), most=node),
            reason=reason,
            unblock=(message("ask-smaller-instances", most=devices(node)),),
            chain=chain,
            level=books.topology.chains[chain].types[books.topology.chains[chain].node_level],
        )
    if all(items_of(books.topology.chains[c], request) is None for c in chains):
        asked = (request.within, *(m.within_level for m in request.members))
        level = next(name for name in asked if name is not None)
        known = books.topology.chains[chain]
        return Wait(
            request=request,
            code=WaitCode.NO_CELL_OF_LEVEL,
            message=message("no-such-level", level=level),
            reason=reason,
            unblock=(message("name-level", names=Listing(tuple(known.types[1:]))),),
            chain=chain,
            level=level,
        )
    return _too_wide(books, request, chains, reason) or _too_large(books, request, chains, reason)


def _too_wide(
    books: CellBooks, request: GangRequest, chains: list[str], reason: str
) -> Wait | None:
    """Return the refusal of a gang that is larger than any cell of its required level, or None."""
    if request.within is None:
        return None
    most, chain, level = 0, chains[0], ""
    for name in chains:
        topology = books.topology.chains[name]
        widest = topology.widest(request.within)
        if widest is not None and widest > most:
            found = topology.level_named(request.within)
            most, chain = widest, name
            level = (
                request.within.partition(":")[2]
                if found is None
                else topology.types[max(found, topology.node_level)]
            )
    if request.leaf_count <= most:
        return None
    return Wait(
        request=request,
        code=WaitCode.EXCEEDS_VC_MAX,
        message=message(
            "job-too-wide",
            wanted=devices(request.leaf_count),
            level=_level_words(books, chain, level),
            most=most,
        ),
        reason=reason,
        unblock=(message("ask-at-most-or-spread", most=devices(most)),),
        chain=chain,
        level=level,
    )


def _too_large(
    books: CellBooks, request: GangRequest, chains: list[str], reason: str
) -> Wait | None:
    chain = max(chains, key=lambda c: most_devices(books, request, c))
    most = most_devices(books, request, chain)
    if request.leaf_count <= most:
        return None
    wanted, other = devices(request.leaf_count), _opportunistic_advice(books, request)
    owner = (
        message("the-virtual-cluster", name=request.vc)
        if request.guaranteed
        else message("the-cluster")
    )
    found = message("job-too-large", wanted=wanted, owner=owner, most=most)
    if request.pinned is not None:
        quota = quota_of(books, request, chain)
        found = message("job-too-large-for-pinned", wanted=wanted, owner=quota, most=most)
        other = (message("run-outside-pinned"),)
    ask = message("ask-at-most", most=devices(most))
    return Wait(
        request=request,
        code=WaitCode.EXCEEDS_VC_MAX,
        message=found,
        reason=reason,
        unblock=(ask, *other) if request.guaranteed else (ask,),
        chain=chain,
        quota=quota_of(books, request, chain) if request.guaranteed else "",
    )


def _opportunistic_advice(books: CellBooks, request: GangRequest) -> tuple[Message, ...]:
    """Advise to run opportunistically, if a chain has enough devices."""
    most = max((chain.leaf_count for chain in books.topology.chains.values()), default=0)
    return (message("run-opportunistically"),) if request.leaf_count <= most else ()


def most_devices(books: CellBooks, request: GangRequest, chain: str) -> int:
    """Return the maximum number of devices for such a request: the quota, or all of the chain."""
    topology = books.topology.chains[chain]
    if not request.guaranteed:
        return topology.leaf_count
    pool = books.pool(request.vc, chain, request.pinned)
    if pool is None:
        return 0
    if pool.pinned is not None:
        return sum(mask.bit_count() for mask in pool.masks.values())
    return sum(len(slots) * topology.sizes[level][1] for level, slots in enumerate(pool.slots))


def _guarantee(books: CellBooks, request: GangRequest, chains: list[str]) -> Guarantee:
    """Return the guarantee for a request in several chains; the result is cached."""
    key = (request.vc, request.pinned, *chains)
    known = books.guarantees.get(key)
    if known is not None:
        return known
    chain, total = chains[0], 0
    for name in chains:
        most = most_devices(books, request, name)
        chain = name if most > total else chain
        total += most
    found = Guarantee(chain, total, _quota_in_chains(books, request, chains))
    if request.pinned is None:
        books.guarantees[key] = found
    return found


def _pools(books: CellBooks, request: GangRequest, chains: list[str]) -> list[tuple[Roster, Pool]]:
    found = ((books.rosters[c], books.pool(request.vc, c, request.pinned)) for c in chains)
    return [(roster, pool) for roster, pool in found if pool is not None]


def _free_in(books: CellBooks, request: GangRequest, chains: list[str]) -> int:
    return sum(
        free_devices(roster.ledger, pool) for roster, pool in _pools(books, request, chains)
    )


def _guaranteed_refusal(
    books: CellBooks, request: GangRequest, chains: list[str], reason: str
) -> Wait:
    holders = [
        ranked
        for roster, pool in _pools(books, request, chains)
        for ranked in roster.largest(pool.number, MAX_BLOCKERS, priority=request.priority)
    ]
    return _quota_refusal(
        books, request, chains, reason,
        free=_free_in(books, request, chains),
        is_used=bool(holders),
        blocked_by=_largest_names(holders),
    )  # fmt: skip


def _quota_refusal(
    books: CellBooks,
    request: GangRequest,
    chains: list[str],
    reason: str,
    *,
    free: int,
    is_used: bool,
    blocked_by: tuple[str, ...],
) -> Wait:
    """Build the refusal of a guaranteed gang whose quota has ``free`` free devices."""
    chain, total, mine = _guarantee(books, request, chains)
    size = max([m.leaf_count for m in request.members])
    level = _level_of(books, chain, request)
    apart = not is_used or (
        free >= request.leaf_count and (size > 1 or request.within is not None)
    )
    facts: dict[str, Parameter] = {
        "vc": request.vc, "quota": mine, "total": devices(total), "request": shape(request),
    }  # fmt: skip
    return Wait(
        request=request,
        code=WaitCode.NO_CELL_OF_LEVEL if apart else WaitCode.VC_GUARANTEE_IN_USE,
        message=message(
            "guarantee-apart", **facts, free=free, level=_level_words(books, chain, level)
        )
        if apart
        else message("guarantee-in-use", **facts, used=total - free),
        reason=reason,
        blocked_by=blocked_by,
        unblock=(message("run-opportunistically"),),
        chain=chain,
        level=level,
        quota=mine,
        counts=True,
        free=free,
    )


def _level_of(books: CellBooks, chain: str, request: GangRequest) -> str:
    """Return the level that must contain the gang, or the lowest that can hold its instances."""
    topology = books.topology.chains[chain]
    whole = topology.level_named(request.within) if request.within is not None else None
    if whole is not None:
        return topology.types[max(whole, topology.node_level)]
    size = max(m.leaf_count for m in request.members)
    level = next(
        (low for low in range(1, topology.node_level) if topology.sizes[low][1] >= size),
        topology.node_level,
    )
    return topology.types[level]


def quota_of(books: CellBooks, request: GangRequest, chain: str) -> Parameter:
    """Format the guarantee of a virtual cluster in a chain: ``2 × node, 1 × socket``."""
    return _quota_in_chains(books, request, [chain])


def _quota_in_chains(books: CellBooks, request: GangRequest, chains: list[str]) -> Parameter:
    """Format the guarantee of a virtual cluster in several chains."""
    if request.pinned is not None:
        return message("the-pinned-cell", pinned=request.pinned)
    cells = tuple(
        message("cells-of-level", count=count, level=_level_words(books, chain, level))
        for chain in chains
        if len(chains) == 1 or most_devices(books, request, chain)
        for level, count in _cells_in(books, request, chain).items()
    )
    return Listing(cells) if cells else message("no-cells")


def _level_words(books: CellBooks, chain: str, level: str) -> str:
    """Return a level without its device type as a prefix: ``cpu-a node`` for ``cpu-a-node``."""
    known = books.topology.chains.get(chain)
    prefix = "" if known is None else f"{known.leaf_type}-"
    if not prefix or not level.casefold().startswith(prefix.casefold()) or level == prefix:
        return level
    return f"{level[: len(prefix) - 1]} {level[len(prefix) :]}"


def _cells_in(books: CellBooks, request: GangRequest, chain: str) -> dict[str, int]:
    """Return the guaranteed cells of a virtual cluster in a chain by level."""
    cells: dict[str, int] = {}
    for quota in books.spec.virtual_clusters[request.vc].quotas:
        if quota.chain == chain and quota.count:
            cells[quota.level] = cells.get(quota.level, 0) + quota.count
    return cells


def free_devices(ledger: ChainLedger, pool: Pool) -> int:
    """Return the devices of a quota without a guaranteed user, in any number of pieces."""
    topology = ledger.topology
    used = sum(count * bits.bit_count() for count, bits in enumerate(pool.used))
    empty = sum(count * len(keys) for count, keys in enumerate(pool.empty))
    unbound = sum(n * topology.sizes[level][1] for level, n in enumerate(pool.unbound))
    return used + empty + unbound


def _largest_names(ranked: list[tuple[int, str]]) -> tuple[str, ...]:
    """Return the names of the largest gangs of several chains; ties in order of name."""
    return tuple([name for _, name in sorted(ranked)[:MAX_BLOCKERS]])


@lru_cache(maxsize=256)
def devices(count: int) -> Message:
    """Format a number of devices as a message."""
    return message("devices", n=count)


@lru_cache(maxsize=1024)  # thousands of gangs ask for the same few shapes
def _shape(members: tuple[Member, ...]) -> Parameter:
    return Listing(
        tuple(message("instances", n=m.count, devices=devices(m.leaf_count)) for m in members),
        "and",
    )


def shape(request: GangRequest) -> Parameter:
    """Format the size of a gang: ``2 instances of 4 devices``."""
    return _shape(request.members)


def _opportunistic_refusal(
    books: CellBooks,
    request: GangRequest,
    chains: list[str],
    reason: str,
    *,
    idle_in: Callable[[str], int],
    blocked_by: tuple[str, ...] | None = None,
) -> Wait:
    """Build the refusal of an opportunistic gang: all gangs in its chains block it."""
    largest, asked = max([m.leaf_count for m in request.members]), request.leaf_count
    known = books.topology.chains
    able = [
        name
        for name in chains
        if known[name].node_size >= largest and known[name].leaf_count >= asked
    ] or chains
    chain = max(able, key=idle_in)
    if blocked_by is None:
        blocked_by = _largest_names(
            [ranked for name in able for ranked in books.rosters[name].largest(None, MAX_BLOCKERS)]
        )
    level, idle = _level_of(books, chain, request), idle_in(chain)
    kind = known[chain].leaf_type
    facts: dict[str, Parameter] = {
        "kind": kind
        if len(books.topology.leaf_types[kind]) == 1
        else message("type-in-chain", kind=kind, chain=chain),
        "request": shape(request),
        "level": _level_words(books, chain, level),
    }
    return Wait(
        request=request,
        code=WaitCode.OPPORTUNISTIC_NO_IDLE,
        message=message("idle-apart", **facts, n=idle) if idle else message("none-idle", **facts),
        reason=reason,
        blocked_by=blocked_by,
        chain=chain,
        level=level,
        counts=True,
        free=idle,
    )


def idle_devices(ledger: ChainLedger) -> int:
    """Return the healthy devices of a chain without a user, in any number of pieces."""
    return sum(free * bits.bit_count() for (_, free), bits in ledger.idle.items())
