"""Previewing and applying another specification to running gangs, without evictions.

The dry run builds an engine for each specification, and both take over the same gangs from their
leases, exactly as the next round does (``take_over``). So its result equals that round.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from scheduling.core.cells.engine import CellEngine
from scheduling.core.cells.errors import SpecError
from scheduling.core.cells.feasibility import feasible
from scheduling.core.cells.requests import GangRequest, Placed
from scheduling.core.cells.spec import ClusterSpec, VcSpec
from scheduling.core.cells.topology import ClusterTopology


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningGang:
    """A gang that holds devices according to its leases.

    Attributes:
        placements: with virtual addresses if it was guaranteed, else without.
    """

    request: GangRequest
    placements: tuple[Placed, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterHealth:
    """The unhealthy nodes by name, and unhealthy devices by node and index."""

    nodes: frozenset[str] = frozenset()
    devices: frozenset[tuple[str, int]] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseChange:
    """The quota of one level before and after, in cells."""

    vc: str
    chain: str
    level: str
    before: int
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PinChange:
    """The address of a pinned cell before and after; empty if it is not pinned."""

    vc: str
    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconfiguration:
    """The result of :func:`dry_run`.

    Attributes:
        fits: whether all guarantees fit; if not, the change must not be applied.
        witnesses: the level with too few cells, at most one per chain; empty if all fit.
        loses: gangs that are guaranteed now and borrow afterwards; they continue.
        regains: gangs that borrow now and are guaranteed afterwards.
        stranded: gangs on removed devices; a change that strands a gang must not be applied.
        promises, pins: changed guarantees and pinned cells.
        nodes_added, nodes_removed: names, in the order of their specification.
    """

    fits: bool
    witnesses: tuple[str, ...] = ()
    loses: tuple[str, ...] = ()
    regains: tuple[str, ...] = ()
    stranded: tuple[str, ...] = ()
    promises: tuple[PromiseChange, ...] = ()
    pins: tuple[PinChange, ...] = ()
    nodes_added: tuple[str, ...] = ()
    nodes_removed: tuple[str, ...] = ()


def dry_run(
    before: ClusterSpec,
    after: ClusterSpec,
    running: Sequence[RunningGang],
    *,
    health: ClusterHealth | None = None,
) -> Reconfiguration:
    """Preview the effect of another specification on running gangs; changes nothing.

    Args:
        before: the current specification.
        after: the new specification.
        running: gangs in the order in which rounds take them over.
        health: the unhealthy nodes and devices; None if all are healthy.

    Raises:
        SpecError: ``after`` names unknown cells or levels.
    """
    health = health or ClusterHealth()
    changes = judge(before, after)
    if not changes.fits:
        return changes
    had = _guaranteed_now(before, running, health)
    engine, stranded = taken_over(after, running, health)
    has = guaranteed_gangs(engine)
    names = [gang.request.group for gang in running]
    return replace(
        changes,
        loses=tuple(name for name in names if name in had and name not in has),
        regains=tuple(name for name in names if name in has and name not in had),
        stranded=stranded,
    )


def judge(before: ClusterSpec, after: ClusterSpec) -> Reconfiguration:
    """Check whether ``after`` fits, and compute the changed guarantees, without regard to gangs.

    Raises:
        SpecError: ``after`` names unknown cells or levels.
    """
    old, new = ClusterTopology(before), ClusterTopology(after)
    witnesses = _witnesses(after, new)
    return Reconfiguration(
        fits=not witnesses,
        witnesses=witnesses,
        promises=_promises(before.virtual_clusters, after.virtual_clusters),
        pins=_pins(before.virtual_clusters, after.virtual_clusters),
        nodes_added=tuple(name for name in new.nodes if name not in old.nodes),
        nodes_removed=tuple(name for name in old.nodes if name not in new.nodes),
    )


def taken_over(
    spec: ClusterSpec, running: Iterable[RunningGang], health: ClusterHealth
) -> tuple[CellEngine, tuple[str, ...]]:
    """Build an engine with health and all gangs; also return the stranded gangs.

    Raises:
        SpecError: the specification is invalid, or its quotas do not fit.
    """
    engine = CellEngine(spec)
    for node in sorted(health.nodes):
        engine.set_node_health(node, healthy=False)
    for node, index in sorted(health.devices):
        engine.set_device_health(node, index, healthy=False)
    return engine, take_over(engine, running)


def take_over(
    engine: CellEngine, running: Iterable[RunningGang], claims: Iterable[RunningGang] = ()
) -> tuple[str, ...]:
    """Let an engine take over gangs from their leases, without evictions.

    Running gangs come first, then the claims of preemptors. Finally, gangs without their guarantee
    get it back if quota is free.

    Args:
        engine: without gangs.
        running: gangs that hold devices, in the order in which they are taken over.
        claims: gangs that wait for victims, with the claimed placements.

    Returns:
        Names of the gangs with devices that are unknown to the engine.
    """
    stranded = []
    for gang in running:
        restored = engine.restore(gang.request, gang.placements)
        if restored.unknown:
            stranded.append(gang.request.group)
    for claim in claims:
        engine.restore(claim.request, claim.placements, preempting=True)
    engine.return_to_guaranteed()
    return tuple(stranded)


def guaranteed_gangs(engine: CellEngine) -> frozenset[str]:
    """Return the names of the gangs with quota."""
    return frozenset(name for name, gang in engine.gangs.items() if gang.guaranteed)


def _guaranteed_now(
    spec: ClusterSpec, running: Sequence[RunningGang], health: ClusterHealth
) -> frozenset[str]:
    try:
        engine, _ = taken_over(spec, running, health)
    except SpecError:
        # The leases do not fit the current specification (tables were edited by hand): use the
        # leases.
        return frozenset(
            gang.request.group
            for gang in running
            if gang.request.guaranteed and all(placed.virtual for placed in gang.placements)
        )
    return guaranteed_gangs(engine)


def _witnesses(spec: ClusterSpec, topology: ClusterTopology) -> tuple[str, ...]:
    """Return the witness of each chain separately, so that all errors are reported at once."""
    whole = feasible(spec)
    if whole.ok:
        return ()
    found = []
    for name, chain in topology.chains.items():
        addresses = set(chain.address)
        alone = {
            vc: VcSpec(
                quotas=tuple(quota for quota in shares.quotas if quota.chain == name),
                pinned={pin: at for pin, at in shares.pinned.items() if at in addresses},
            )
            for vc, shares in spec.virtual_clusters.items()
        }
        answer = feasible(replace(spec, virtual_clusters=alone))
        if not answer.ok:
            found.append(answer.witness)
    return tuple(found) or (whole.witness,)


def _promises(
    before: Mapping[str, VcSpec], after: Mapping[str, VcSpec]
) -> tuple[PromiseChange, ...]:
    old, new = _quotas(before), _quotas(after)
    return tuple(
        PromiseChange(
            vc=vc,
            chain=chain,
            level=level,
            before=old.get((vc, chain, level), 0),
            after=new.get((vc, chain, level), 0),
        )
        for vc, chain, level in sorted(old.keys() | new.keys())
        if old.get((vc, chain, level), 0) != new.get((vc, chain, level), 0)
    )


def _quotas(shares: Mapping[str, VcSpec]) -> dict[tuple[str, str, str], int]:
    counts: dict[tuple[str, str, str], int] = {}
    for vc, share in shares.items():
        for quota in share.quotas:
            key = vc, quota.chain, quota.level
            counts[key] = counts.get(key, 0) + quota.count
    return counts


def _pins(before: Mapping[str, VcSpec], after: Mapping[str, VcSpec]) -> tuple[PinChange, ...]:
    old = {(vc, name): at for vc, share in before.items() for name, at in share.pinned.items()}
    new = {(vc, name): at for vc, share in after.items() for name, at in share.pinned.items()}
    return tuple(
        PinChange(vc=vc, name=name, before=old.get((vc, name), ""), after=new.get((vc, name), ""))
        for vc, name in sorted(old.keys() | new.keys())
        if old.get((vc, name)) != new.get((vc, name))
    )
