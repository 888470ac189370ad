"""The frozen input of a round; ``round_result`` has its output, ``policy_interface`` policies."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from scheduling.core.cells import ClusterSpec
from scheduling.core.cpu_pools import CpuPool, PoolLease
from scheduling.core.device_types import usable
from scheduling.core.jobspec import NO_REQUIREMENTS, Demand, JobClass, Requirements
from scheduling.core.policy_interface import NO_FACTS, PLAIN_TERMS, Facts, GridTable, Terms
from scheduling.core.sharing.hosts import GuestNeed, Host
from scheduling.core.sharing.pairs import Paces, PairRecord
from scheduling.core.storages import StorageFacts
from tessera.isolation import NONE, USER


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class RunObservation:
    """A job's reports of one run: steps and samples in a number of seconds.

    Attributes:
        executors: number of processes on each device; 0 for unequal numbers.
    """

    type: str
    nodes: int
    devices: int
    seconds: float
    steps: int
    samples: float
    executors: int = 1


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Timed:
    """Step times of one batch in a run.

    Attributes:
        batch: samples of all devices in a step.
        accumulation: passes of each device in it.
        seconds: total seconds of these steps.
    """

    type: str
    nodes: int
    devices: int
    batch: int
    accumulation: int
    steps: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """Facts of a live job besides its gang, for policies that use more than gangs and arrivals.

    Attributes:
        asked: the submitted gang, if the job runs at another size.
        start_seconds: mean duration of its starts; None before the first start.
        timed: its steps by batch, of a job whose batch may change.
        noise: last reported squared norm and variance of its gradient at the initial batch.
        profile: steps that profile jobs measured on one device of each type.
        profile_noise: as ``noise``, but measured by a profile job.
    """

    terms: Terms = PLAIN_TERMS
    facts: Facts = NO_FACTS
    asked: Demand | None = None
    seen: tuple[RunObservation, ...] = ()
    start_seconds: float | None = None
    timed: tuple[Timed, ...] = ()
    noise: tuple[float, float] | None = None
    profile: tuple[Timed, ...] = ()
    profile_noise: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VcFacts:
    """Facts of a virtual cluster for a round; its guarantee is in the cluster specification.

    Attributes:
        policy_fault: fault of its policy in the last round that called it.
        least_isolation: its jobs run only on nodes of at least this isolation level; the stricter
            of its own minimum and the cluster's.
    """

    id: int
    name: str
    tenant: int
    policy: str
    policy_args: Mapping[str, Any] = field(default_factory=dict)
    policy_state: Mapping[str, Any] = field(default_factory=dict)
    max_devices_per_user: int | None = None
    max_opportunistic_devices: int | None = None
    policy_fault: str = ""
    least_isolation: str = NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """A waiting job with all its gates.

    Attributes:
        after: IDs of dependencies that have not succeeded yet.
        after_failed: IDs of those dependencies that did not succeed: the job can never start.
        excluded_nodes: names of nodes on which an earlier attempt failed by the node's fault.
        user_cap: the member's own cap in devices, if the tenant set one.
        waiting_for: ids of victims that were preempted for this job.
        claims: the devices that it has claimed from them (``core/round/claims.py``).
        turn_of: limit of parallel jobs of the sweep that holds this job.
        one_node: whether its policy starts it on one node only.
    """

    id: int
    vc: int
    tenant: int
    owner: int
    owner_name: str
    priority: int
    job_class: JobClass
    demand: Demand
    submitted: float
    not_before: float | None = None
    held: bool = False
    backoff_until: float | None = None
    after: tuple[int, ...] = ()
    after_failed: tuple[int, ...] = ()
    excluded_nodes: tuple[str, ...] = ()
    user_cap: int | None = None
    waiting_for: tuple[int, ...] = ()
    claims: Mapping[str, Any] | None = field(default=None, hash=False)
    turn_of: int | None = None
    one_node: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLeaf:
    """A leased device: the address of its physical leaf and of the virtual one bound to it."""

    address: str
    virtual: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldingJob:
    """A job that holds devices, by member of its gang.

    Attributes:
        since: start of its current state.
        saved: report of its newest checkpoint; None without one, so that an eviction loses all its
            work.
        user_cap: the member's own cap in devices, if the tenant set one.
    """

    id: int
    vc: int
    tenant: int
    owner: int
    priority: int
    job_class: JobClass
    demand: Demand
    submitted: float
    since: float
    leaving: bool
    members: tuple[tuple[HeldLeaf, ...], ...]
    saved: float | None = None
    user_cap: int | None = None

    @property
    def devices(self) -> int:
        """Devices held now."""
        return sum(map(len, self.members))

    def at_stake(self, now: float) -> float:
        """Return the device-seconds that a kill would lose: the work since the last checkpoint."""
        if self.leaving:
            return 0.0  # no further cost
        return max(now - max(self.since, self.saved or 0.0), 0.0) * self.devices


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldGuest:
    """A running guest; it binds no cell, so it is in no other list of jobs.

    Attributes:
        job: the job with its device, which has no virtual leaf.
        address: address of the device.
        node: name of its node.
        index: number of the device on the node.
        slot: 1 to 3.
        holder: ID of the job beside which it was placed.
    """

    job: HoldingJob
    address: str
    node: str
    index: int
    slot: int
    holder: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPeer:
    """A running job that its policy has paired with the holder of a device.

    Attributes:
        guest: the job and its place; it binds no cell, but it is guaranteed and charged.
        turn_seconds: seconds of a turn on the device; 0 if both run at the same time.
        paces: measured paces of the holder and of this job; None before the first measurement.
    """

    guest: HeldGuest
    turn_seconds: float = 0.0
    paces: Paces | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldCpuJob:
    """A running job without devices; it binds no cell, so it is in no other list of jobs.

    Attributes:
        job: the job, whose members hold no devices.
        leases: parts of the pools of nodes that its instances hold.
    """

    job: HoldingJob
    leases: tuple[PoolLease, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """Facts of a node that a round uses.

    Attributes:
        placeable: whether new work may start (ready, neither cordoned nor draining).
        healthy: whether its cells count as healthy; False for a node that is down.
        cpus_per_device: processors that belong to one device.
        memory_per_device: bytes that belong to one device.
        isolation: highest isolation level at which it runs plain jobs.
        owner: tenant that owns it until an admin resets it, or None.
        tenants: tenants whose jobs it accepts; empty for all.
        has_rdma: whether containers can get InfiniBand devices.
        gpus: versions of its GPU driver, and memory of its smallest GPU.
        type_memory: memory of the smallest GPU of each type, if it has GPUs of several types.
        nvlink: types whose devices have NVLink domains of two or more.
    """

    name: str
    placeable: bool
    healthy: bool
    has_docker: bool
    cpus_per_device: float
    memory_per_device: int
    isolation: str = USER
    owner: int | None = None
    tenants: frozenset[int] = frozenset()
    has_rdma: bool = False
    gpus: Requirements = NO_REQUIREMENTS
    type_memory: tuple[tuple[str, int], ...] = ()
    nvlink: tuple[str, ...] = ()

    def gpus_for(self, device_types: Collection[str]) -> Requirements:
        """Return the properties of the GPUs that a job may get here.

        Args:
            device_types: the types that the job names; if empty, it may get any but display GPUs.
        """
        if not self.type_memory:
            return self.gpus
        sizes = dict(self.type_memory)
        memory = min((sizes[kind] for kind in self._kinds(device_types)), default=0)
        return replace(self.gpus, device_memory=memory)

    def has_nvlink(self, device_types: Collection[str]) -> bool:
        """Return whether all GPUs that a job may get here have NVLink domains."""
        if not self.type_memory:
            return bool(self.nvlink)
        kinds = self._kinds(device_types)
        return bool(kinds) and kinds <= set(self.nvlink)

    def _kinds(self, device_types: Collection[str]) -> set[str]:
        """Return the types of a node with several types that a job may get."""
        here = [kind for kind, _ in self.type_memory]
        return set(here).intersection(device_types) if device_types else set(usable(here))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    """The complete input of a round, read in one consistent view.

    Attributes:
        now: seconds since the epoch.
        spec: physical cells and the guarantees of the virtual clusters, in force now.
        bad_devices: node and index of unhealthy devices.
        images_required: whether a job with an image needs a node with a container engine.
        known: facts by job, for virtual clusters whose policies use more than gangs and arrivals.
        ports_left: number of free ports; None if not counted.
        device_memory: bytes of the smallest device of each type that reports it; only if policies
            use more than gangs and arrivals.
        storages: facts of the storages by name.
        grids: the best grid of each shape of each profiled hybrid job, by job ID; empty for a job
            without a possible plan. Stored only if any.
        given_sizes: devices at which a job in ``grids`` has a plan of its owner, by job ID.
        hosts: devices with a holder that may have guests; empty if no device is shared.
        guests: the running guests.
        guest_needs: device memory of the waiting jobs that may be guests, by job.
        peers: the running jobs that share the device of another job of their virtual cluster.
        peer_needs: device memory of the live jobs whose policies may pair them, by job.
        pair_paces: measured pairs by application of the holder, device type, and application of
            the other job.
        suspect_devices: node and index of devices on which unusually many jobs failed; placements
            avoid them between equal choices. Stored only if any.
        cpu_pools: CPUs and memory of nodes that belong to no device; empty if there are none.
        cpu_queued: the waiting jobs without devices, which policies do not plan.
        cpu_holding: the running jobs without devices.
    """

    now: float
    round_number: int
    round_seconds: float
    seed: int
    topology_version: int
    spec: ClusterSpec
    vcs: tuple[VcFacts, ...]
    nodes: tuple[NodeFacts, ...]
    queued: tuple[QueuedJob, ...]
    holding: tuple[HoldingJob, ...]
    bad_devices: frozenset[tuple[str, int]] = frozenset()
    images_required: bool = True
    known: Mapping[int, JobFacts] = field(default_factory=dict)
    ports_left: int | None = None
    device_memory: Mapping[str, int] = field(default_factory=dict)
    storages: Mapping[str, StorageFacts] = field(default_factory=dict)
    grids: Mapping[int, GridTable] = field(default_factory=dict)
    given_sizes: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    hosts: tuple[Host, ...] = ()
    guests: tuple[HeldGuest, ...] = ()
    guest_needs: Mapping[int, GuestNeed] = field(default_factory=dict)
    peers: tuple[HeldPeer, ...] = ()
    peer_needs: Mapping[int, GuestNeed] = field(default_factory=dict)
    pair_paces: Mapping[str, Mapping[str, Mapping[str, PairRecord]]] = field(default_factory=dict)
    suspect_devices: frozenset[tuple[str, int]] = frozenset()
    cpu_pools: tuple[CpuPool, ...] = ()
    cpu_queued: tuple[QueuedJob, ...] = ()
    cpu_holding: tuple[HeldCpuJob, ...] = ()
