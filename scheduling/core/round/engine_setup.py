"""The cell engine of a round: built once per specification, with the running jobs restored."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from scheduling.core.cells import CellEngine, ClusterSpec
from scheduling.core.cells.gangs import Gang
from scheduling.core.cells.reconfiguration import RunningGang, take_over
from scheduling.core.jobspec import JobClass
from scheduling.core.round.claims import claimed_gangs
from scheduling.core.round.gang_requests import group_name, parts_of, restored_requests
from scheduling.core.round_result import Rebinding
from scheduling.core.values import ClusterSnapshot, HeldLeaf, HoldingJob


def engine_for(snapshot: ClusterSnapshot) -> CellEngine:
    """Build the cell engine with health, and all running jobs restored from their leases.

    Jobs that wait for victims get their claims back. Jobs without their guarantee regain it if it
    is free.
    """
    engine = empty_engine(snapshot.spec)
    for node in snapshot.nodes:
        if not node.healthy:
            engine.set_node_health(node.name, healthy=False)
    for node_name, index in sorted(snapshot.bad_devices):
        engine.set_device_health(node_name, index, healthy=False)
    if snapshot.suspect_devices:
        engine.set_avoided(sorted(snapshot.suspect_devices))
    names = {vc.id: vc.name for vc in snapshot.vcs}
    take_over(
        engine,
        running_gangs(snapshot.holding, names, snapshot.now),
        claimed_gangs(snapshot.queued, names, snapshot.now),
    )
    return engine


def gangs_of(engine: CellEngine, job: HoldingJob) -> tuple[Gang, ...]:
    """Return the gangs of a running job's parts that the engine has."""
    names = (group_name(job.id, number) for number in range(len(parts_of(job.demand))))
    return tuple([engine.gangs[name] for name in names if name in engine.gangs])


def borrowed_devices(engine: CellEngine, job: HoldingJob) -> int:
    """Return the devices that a running job holds without a guarantee, for any submitted class."""
    if job.job_class is JobClass.OPPORTUNISTIC:
        return job.devices
    return sum(
        spot.mask.bit_count()
        for gang in gangs_of(engine, job)
        if not gang.guaranteed
        for spot in gang.spots
    )


def empty_engine(spec: ClusterSpec) -> CellEngine:
    """Return a new cell engine without gangs and with only healthy devices.

    The engine of a specification is built once and then copied.
    """
    return _pristine(SameSpec(spec)).fresh_copy()


def running_gangs(
    holding: Iterable[HoldingJob], vcs: Mapping[int, str], now: float
) -> Iterator[RunningGang]:
    """Yield the jobs that hold devices as gangs, in the order of restoring."""
    for job in sorted(holding, key=lambda job: job.id):
        for request, placements in restored_requests(job, vcs[job.vc], now):
            yield RunningGang(request=request, placements=placements)


def rebindings(engine: CellEngine, holding: Iterable[HoldingJob]) -> Iterator[Rebinding]:
    """Yield running jobs whose leases and engine disagree about the guarantee.

    Leaving jobs are omitted: their leases end anyway.
    """
    for job in sorted(holding, key=lambda job: job.id):
        for group, held in _disagreeing(engine, job):
            yield _rebinding(engine, job.id, group, held)


def disagrees(engine: CellEngine, job: HoldingJob) -> bool:
    """Return whether leases and engine disagree about the guarantee of a running job."""
    return any(True for _ in _disagreeing(engine, job))


def _disagreeing(engine: CellEngine, job: HoldingJob) -> Iterator[tuple[str, list[HeldLeaf]]]:
    if job.leaving:
        return
    for number, indices in enumerate(parts_of(job.demand)):
        gang = engine.gangs.get(group_name(job.id, number))
        if gang is None or gang.roster is None:
            continue
        held = _held_by(job, indices)
        if gang.guaranteed != all(leaf.virtual for leaf in held):
            yield gang.name, held


def _held_by(job: HoldingJob, indices: tuple[int, ...]) -> list[HeldLeaf]:
    if len(job.members) == 1 and len(job.demand.members) == len(indices) == 1:
        return list(job.members[0])
    owners = (index for index, part in enumerate(job.demand.members) for _ in range(part.count))
    return [
        leaf
        for index, leaves in zip(owners, job.members, strict=False)
        if index in indices
        for leaf in leaves
    ]


def _rebinding(engine: CellEngine, job_id: int, group: str, held: list[HeldLeaf]) -> Rebinding:
    view = engine.group(group)
    virtual = {
        address: cell
        for placed in (view.placements if view is not None else ())
        for address, cell in zip(placed.leaves, placed.virtual, strict=False)
    }
    return Rebinding(
        job_id=job_id,
        guaranteed=bool(virtual),
        leaves=tuple(
            HeldLeaf(address=leaf.address, virtual=virtual.get(leaf.address, "")) for leaf in held
        ),
    )


class SameSpec:
    """A specification compared by identity: unchanged snapshots share it."""

    __slots__ = ("spec",)

    def __init__(self, spec: ClusterSpec) -> None:
        self.spec = spec

    def __hash__(self) -> int:
        return id(self.spec)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SameSpec) and other.spec is self.spec


@lru_cache(maxsize=4)
def _pristine(same: SameSpec) -> CellEngine:
    return CellEngine(same.spec)


def guaranteed_devices(engine: CellEngine, vc: str) -> dict[str, int]:
    """Return the guaranteed devices of a virtual cluster by type, including pinned cells.

    An archived one has none.
    """
    capacity: dict[str, int] = defaultdict(int)
    for chain, devices in guaranteed_by_chain(engine, vc).items():
        capacity[engine.topology.chains[chain].leaf_type] += devices
    return dict(capacity)


def guaranteed_by_chain(engine: CellEngine, vc: str) -> dict[str, int]:
    """Return the guaranteed devices of a virtual cluster by chain, including pinned cells."""
    devices: dict[str, int] = defaultdict(int)
    share = engine.spec.virtual_clusters.get(vc)
    for quota in share.quotas if share is not None else ():
        chain = engine.topology.chains[quota.chain]
        level = chain.level_named(quota.level)
        if level is not None:
            devices[quota.chain] += quota.count * chain.sizes[level][1]
    for name in share.pinned if share is not None else ():
        chain_name = engine.pinned_chain(vc, name)
        pool = engine.pool(vc, chain_name, name) if chain_name is not None else None
        if chain_name is not None and pool is not None:
            devices[chain_name] += sum(mask.bit_count() for mask in pool.masks.values())
    return dict(devices)
