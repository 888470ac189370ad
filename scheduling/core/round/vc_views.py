"""Private views of virtual clusters for their policies, built from a round's snapshot."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Final

from scheduling.core.cells import CellEngine
from scheduling.core.jobspec import Demand
from scheduling.core.policy_interface import (
    LINEAR,
    Alloc,
    GridTable,
    JobPhase,
    Model,
    Part,
    PolicyJob,
    Pool,
    Snapshot,
    TypeInfo,
)
from scheduling.core.round.engine_setup import borrowed_devices, guaranteed_devices
from scheduling.core.round.grid_sizes import table_for
from scheduling.core.round.peers import shared_view
from scheduling.core.sharing.peers import PeerPairs
from scheduling.core.values import ClusterSnapshot, HoldingJob, JobFacts, QueuedJob, VcFacts

NOTHING_KNOWN: Final = JobFacts()


class VirtualClusterViews:
    """Builds views of one snapshot; ``engine`` contains its running jobs only."""

    def __init__(self, snapshot: ClusterSnapshot, engine: CellEngine) -> None:
        self.snapshot = snapshot
        self.engine = engine

    def plain(self, vc: VcFacts, waiting: Iterable[QueuedJob]) -> Snapshot:
        """Build the view with gangs and arrival order only, as first in, first out needs it."""
        jobs = [_waiting(job, NOTHING_KNOWN, self._table(job, job.demand)) for job in waiting]
        jobs += [
            _running(job, NOTHING_KNOWN, None, self._table(job, job.demand))
            for job in self._held_in(vc)
        ]
        return self._view(
            vc, jobs, Pool(capacity=guaranteed_devices(self.engine, vc.name)), LINEAR
        )

    def full(self, vc: VcFacts, waiting: Iterable[QueuedJob]) -> Snapshot:
        """Build the view with allocations, declarations and measurements."""
        from scheduling.core.performance.live import LiveModel  # noqa: PLC0415  brings NumPy

        known = self.snapshot.known
        jobs = []
        for waits in waiting:
            facts = known.get(waits.id, NOTHING_KNOWN)
            table = self._table(waits, facts.asked or waits.demand)
            jobs.append(_waiting(waits, facts, table))
        borrowed: Counter[str] = Counter()
        for job in self._held_in(vc):
            alloc = self._alloc(job)
            facts = known.get(job.id, NOTHING_KNOWN)
            table = self._table(job, facts.asked or job.demand)
            jobs.append(_running(job, facts, alloc if alloc.parts else None, table))
            if borrowed_devices(self.engine, job):
                borrowed.update({part.type or "": part.n for part in alloc.parts})
        if self.snapshot.peer_needs or self.snapshot.peers:
            jobs = shared_view([*jobs, *self._peers_in(vc)], self.snapshot)
        model = LiveModel(jobs, known, self._pairs())
        pool = Pool(
            capacity=guaranteed_devices(self.engine, vc.name),
            borrow=borrowed + self._idle,
            types=_types(self._sizes, model.speeds, self.snapshot.device_memory),
        )
        return self._view(vc, jobs, pool, model)

    def _peers_in(self, vc: VcFacts) -> Iterable[PolicyJob]:
        """Yield the jobs that share the device of another job of the virtual cluster."""
        for peer in self.snapshot.peers:
            job = peer.guest.job
            if job.vc == vc.id:
                facts, alloc = self.snapshot.known.get(job.id, NOTHING_KNOWN), self._alloc(job)
                yield _running(job, facts, alloc if alloc.parts else None, ())

    def _pairs(self) -> PeerPairs | None:
        snapshot = self.snapshot
        if not snapshot.peer_needs:
            return None
        return PeerPairs(
            needs=snapshot.peer_needs,
            measured=snapshot.pair_paces,
            memory=snapshot.device_memory,
        )

    def _table(self, job: QueuedJob | HoldingJob, asked: Demand) -> GridTable:
        grids = self.snapshot.grids.get(job.id, ())
        return table_for(asked, grids, self.snapshot.given_sizes.get(job.id, ())) if grids else ()

    def _view(self, vc: VcFacts, jobs: Sequence[PolicyJob], pool: Pool, model: Model) -> Snapshot:
        return Snapshot(
            now=self.snapshot.now,
            round_seconds=self.snapshot.round_seconds,
            round_number=self.snapshot.round_number,
            seed=self.snapshot.seed,
            pool=pool,
            jobs=tuple(sorted(jobs, key=lambda job: job.id)),
            model=model,
        )

    def _held_in(self, vc: VcFacts) -> Sequence[HoldingJob]:
        return self._held.get(vc.id, ())

    @cached_property
    def _held(self) -> Mapping[int, Sequence[HoldingJob]]:
        found: dict[int, list[HoldingJob]] = defaultdict(list)
        for job in self.snapshot.holding:
            found[job.vc].append(job)
        return found

    @cached_property
    def _sizes(self) -> Mapping[str, tuple[int, int]]:
        return _sizes_of(self.engine)

    def _alloc(self, job: HoldingJob) -> Alloc:
        """Return the allocation of a running job by member, or by type if one is on several."""
        owners = [index for index, m in enumerate(job.demand.members) for _ in range(m.count)]
        held: dict[tuple[int, str], int] = defaultdict(int)
        for index, leaves in zip(owners, job.members, strict=False):
            for leaf in leaves:
                held[index, self._type_of(leaf.address)] += 1
        members = job.demand.members
        return Alloc(
            parts=tuple(
                Part(n=n, type=kind, level=members[index].within.value)
                for (index, kind), n in sorted(held.items())
            )
        )

    def _type_of(self, address: str) -> str:
        topology = self.engine.topology
        place = topology.leaves.get(address)
        # The device left the cluster while a job held it.
        return topology.chains[place[0]].leaf_type if place is not None else ""

    @cached_property
    def _idle(self) -> Counter[str]:
        """Return the healthy free devices, by type."""
        topology = self.engine.topology
        free: Counter[str] = Counter()
        for chain in topology.chains.values():
            free[chain.leaf_type] += chain.leaf_count
        held = {
            leaf.address
            for job in self.snapshot.holding
            for leaves in job.members
            for leaf in leaves
        }
        bad_nodes = {node.name for node in self.snapshot.nodes if not node.healthy}
        for (node, index), (chain_name, number) in topology.devices.items():
            chain = topology.chains[chain_name]
            is_bad = node in bad_nodes or (node, index) in self.snapshot.bad_devices
            if is_bad or chain.address[number] in held:
                free[chain.leaf_type] -= 1
        return +free


def _waiting(job: QueuedJob, known: JobFacts, grids: GridTable) -> PolicyJob:
    return PolicyJob(
        id=job.id,
        owner=job.owner,
        priority=job.priority,
        job_class=job.job_class,
        submitted=job.submitted,
        demand=known.asked or job.demand,
        phase=JobPhase.QUEUED,
        since=job.submitted,
        terms=known.terms,
        facts=known.facts,
        grids=grids,
    )


def _running(job: HoldingJob, known: JobFacts, alloc: Alloc | None, grids: GridTable) -> PolicyJob:
    return PolicyJob(
        id=job.id,
        owner=job.owner,
        priority=job.priority,
        job_class=job.job_class,
        submitted=job.submitted,
        demand=known.asked or job.demand,
        phase=JobPhase.LEAVING if job.leaving else JobPhase.RUNNING,
        since=job.since,
        alloc=alloc,
        terms=known.terms,
        facts=known.facts,
        grids=grids,
    )


def _sizes_of(engine: CellEngine) -> Mapping[str, tuple[int, int]]:
    """Return the number of nodes of each type, and the devices of its largest node."""
    nodes: Counter[str] = Counter()
    largest: dict[str, int] = {}
    for chain in engine.topology.chains.values():
        on_node = Counter(chain.node_of_leaf)
        nodes[chain.leaf_type] += len(on_node)
        most = max(on_node.values(), default=1)
        largest[chain.leaf_type] = max(largest.get(chain.leaf_type, 1), most)
    return {kind: (n, largest[kind]) for kind, n in nodes.items()}


def _types(
    sizes: Mapping[str, tuple[int, int]], speeds: Mapping[str, float], memory: Mapping[str, int]
) -> Mapping[str, TypeInfo]:
    """Return nodes of each type, devices of the largest node, memory, and observed speed."""
    return {
        kind: TypeInfo(
            nodes=nodes,
            node_devices=largest,
            memory=memory.get(kind),
            speed=speeds.get(kind, 1.0),
        )
        for kind, (nodes, largest) in sizes.items()
    }
