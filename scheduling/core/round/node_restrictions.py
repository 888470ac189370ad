"""Nodes that a job may use: tenancy, rights, storages, requirements and shares of devices."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scheduling.core.jobspec import (
    NO_REQUIREMENTS,
    Demand,
    Requirements,
    Within,
    strictest,
)
from scheduling.core.messages import message
from scheduling.core.reasons import Reason
from scheduling.core.round.gang_requests import by_demand
from scheduling.core.values import ClusterSnapshot, NodeFacts, QueuedJob, VcFacts
from tessera.isolation import CONTAINER, LEVELS, NONE, at_least
from tessera.messages import Listing
from tessera.reasons import ReasonCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Restriction:
    """The nodes that a job may use.

    Attributes:
        nodes: names of the nodes; None without restriction.
        lifted: reason of each excluding rule, with the nodes allowed without that rule.
    """

    nodes: frozenset[str] | None = None
    reason: Reason | None = None
    lifted: tuple[tuple[Reason, frozenset[str]], ...] = ()


def is_plain(demand: Demand, *, images_required: bool) -> bool:
    """Return whether a part of a job may run without a container."""
    return not images_required or not all(member.image for member in demand.roles)


def _is_barred(node: NodeFacts, vc: VcFacts) -> bool:
    """Return whether a virtual cluster may not use a node for any job."""
    best = CONTAINER if node.has_docker else node.isolation
    return _is_for_others(node, vc.tenant) or not at_least(best, vc.least_isolation)


def barred_nodes(nodes: Iterable[NodeFacts], vcs: Iterable[VcFacts]) -> dict[str, frozenset[str]]:
    """Return the barred nodes by virtual cluster, without empty entries."""
    alike: dict[Hashable, list[NodeFacts]] = defaultdict(list)
    for node in nodes:
        alike[node.has_docker, node.isolation, node.tenants].append(node)
    found = {
        vc.name: frozenset(
            node.name for some in alike.values() if _is_barred(some[0], vc) for node in some
        )
        for vc in vcs
    }
    return {vc: names for vc, names in found.items() if names}


def restriction_of(job: QueuedJob, vc: VcFacts, snapshot: ClusterSnapshot) -> Restriction:
    """Determine the suitable nodes by containers, shares, isolation, dedication, storages."""
    nodes: Sequence[NodeFacts] = [node for node in snapshot.nodes if node.placeable]
    excluded = set(job.excluded_nodes)
    needs_docker = snapshot.images_required and job.demand.needs_image
    if needs_docker and not any(node.has_docker for node in snapshot.nodes):
        return Restriction(
            reason=Reason(
                code=ReasonCode.NO_NODE_WITH_DOCKER,
                message=message("no-container-engine"),
                unblock=(message("remove-image"),),
            )
        )
    refused = _refused_storage(job, vc, snapshot)
    if refused is not None:
        return Restriction(reason=refused)
    suffices: dict[tuple[float, float], bool] = {}
    for node in nodes:
        share = node.cpus_per_device, node.memory_per_device
        if share not in suffices:
            suffices[share] = _share_suffices(job.demand, node)
    fitting = [n for n in nodes if suffices[n.cpus_per_device, n.memory_per_device]]
    if nodes and not fitting:
        return Restriction(reason=_share_reason(job, nodes))
    suiting = [
        node
        for node in fitting
        if node.name not in excluded and (node.has_docker or not needs_docker)
    ]
    rules = [
        *_below(job, vc, snapshot),
        *_of_others(job, snapshot),
        *_without_storages(job, snapshot),
        *_unsuited(job, snapshot),
        *_without_nvlink(job, snapshot),
    ]
    if snapshot.images_required:
        rules += _without_rights(job, snapshot)
    found = _restricted(suiting, rules)
    if found.nodes is not None and len(found.nodes) == len(snapshot.nodes):
        return Restriction()
    return found


def _restricted(
    suiting: Sequence[NodeFacts], kept: Sequence[tuple[frozenset[str], Reason]]
) -> Restriction:
    """Remove the nodes that admins exclude for a job, and record the rule of each."""
    names = frozenset(node.name for node in suiting)
    rules = [(gone & names, reason) for gone, reason in kept if gone & names]
    allowed = names.difference(*(gone for gone, _ in rules))
    if rules and not allowed:
        return Restriction(reason=rules[0][1])
    lifted = tuple(
        (reason, names.difference(*(gone for gone, other in rules if other is not reason)))
        for _, reason in rules
    )
    return Restriction(nodes=allowed, lifted=lifted)


def _below(
    job: QueuedJob, vc: VcFacts, snapshot: ClusterSnapshot
) -> Iterator[tuple[frozenset[str], Reason]]:
    """Yield nodes below the minimum isolation level of a job, if there are any."""
    least = vc.least_isolation
    plain = is_plain(job.demand, images_required=snapshot.images_required)
    low = {level for level in LEVELS if not at_least(level, least)}
    gone = frozenset(
        node.name
        for node in (snapshot.nodes if low else ())
        if (node.isolation if plain else CONTAINER) in low
    )
    if not gone:
        return
    remedies = [message("ask-to-raise-isolation")]
    if plain:
        remedies.append(message("give-images"))
    yield (
        gone,
        Reason(
            code=ReasonCode.NODE_NOT_ISOLATED,
            message=message("below-isolation", name=vc.name, level=least, n=len(gone)),
            unblock=tuple(remedies),
        ),
    )


def _of_others(
    job: QueuedJob, snapshot: ClusterSnapshot
) -> Iterator[tuple[frozenset[str], Reason]]:
    """Yield nodes that are dedicated to other tenants, if there are any."""
    gone = frozenset(
        node.name for node in snapshot.nodes if node.tenants and _is_for_others(node, job.tenant)
    )
    if not gone:
        return
    yield (
        gone,
        Reason(
            code=ReasonCode.NODE_DEDICATED,
            message=message("nodes-dedicated", n=len(gone)),
            unblock=(message("ask-to-dedicate"),),
        ),
    )


def _without_rights(
    job: QueuedJob, snapshot: ClusterSnapshot
) -> Iterator[tuple[frozenset[str], Reason]]:
    """Yield nodes that do not support the container settings of a job."""
    if any(member.rdma for member in job.demand.roles):
        yield (
            frozenset(node.name for node in snapshot.nodes if not node.has_rdma),
            Reason(
                code=ReasonCode.NO_NODE_WITH_RDMA,
                message=message("no-rdma"),
                unblock=(message("omit-rdma"),),
            ),
        )
    if any(member.host_ipc for member in job.demand.roles):
        yield (
            frozenset(node.name for node in snapshot.nodes if node.tenants != {job.tenant}),
            Reason(
                code=ReasonCode.NODE_DEDICATED,
                message=message("needs-own-node"),
                unblock=(message("use-private-ipc"),),
            ),
        )


def _refused_storage(job: QueuedJob, vc: VcFacts, snapshot: ClusterSnapshot) -> Reason | None:
    """Return the reason of a job with a storage that it may not use any more, or None."""
    for name in job.demand.storages:
        facts = snapshot.storages.get(name)
        if facts is None or vc.id not in facts.vcs:
            return Reason(
                code=ReasonCode.NO_STORAGE,
                message=message("storage-not-allowed", name=name, vc=vc.name),
                unblock=(message("omit-storage"),),
            )
    return None


def _without_storages(
    job: QueuedJob, snapshot: ClusterSnapshot
) -> Iterator[tuple[frozenset[str], Reason]]:
    """Yield nodes without a storage of the job, if there are any.

    A node of level none cannot give a plain job a mount point, nor make a storage read-only.
    """
    names = job.demand.storages
    if not names:
        return
    plain = is_plain(job.demand, images_required=snapshot.images_required)
    having = frozenset(node.name for node in snapshot.nodes if not plain or node.isolation != NONE)
    for name in names:
        facts = snapshot.storages[name]
        having &= facts.nodes if plain else facts.nodes | facts.by_engine
    gone = frozenset(node.name for node in snapshot.nodes) - having
    if gone:
        yield (
            gone,
            Reason(
                code=ReasonCode.STORAGE_NOT_ON_NODES,
                message=message("storages-missing", n=len(gone), names=Listing(names)),
                unblock=(message("ask-for-storage"),),
            ),
        )


@by_demand
def _required(demand: Demand) -> Requirements:
    return strictest([member.requires for member in demand.members])


def _unsuited(
    job: QueuedJob, snapshot: ClusterSnapshot
) -> Iterator[tuple[frozenset[str], Reason]]:
    """Yield nodes whose GPUs or drivers do not meet the requirements of a job, by requirement.

    The members of a gang share a driver's library, so each requirement applies to all of them.
    """
    required = _required(job.demand)
    if required == NO_REQUIREMENTS:
        return
    named = {kind for member in job.demand.members for kind in member.device_types}
    gpus = {node.name: node.gpus_for(named) for node in snapshot.nodes}
    unmet = {facts: required.unmet_by(facts) for facts in set(gpus.values())}
    best = strictest(unmet)
    memory, most = _gibibytes(required), _gibibytes(best)
    for name, is_known, text in (
        (
            "driver",
            best.driver,
            message("driver-too-low", least=required.driver, most=best.driver),
        ),
        ("cuda", best.cuda, message("cuda-too-low", least=required.cuda, most=best.cuda)),
        ("device_memory", most, message("device-memory-too-low", least=memory, most=most)),
    ):
        gone = frozenset(node.name for node in snapshot.nodes if name in unmet[gpus[node.name]])
        if not gone:
            continue
        field = f"requires.{name}"
        yield (
            gone,
            Reason(
                code=ReasonCode.GPU_REQUIREMENT,
                message=text if is_known else message("no-gpu-facts", name=field),
                unblock=(message("lower-requirement", name=field),),
            ),
        )


def _without_nvlink(
    job: QueuedJob, snapshot: ClusterSnapshot
) -> Iterator[tuple[frozenset[str], Reason]]:
    """Yield nodes whose devices have no NVLink domain, if the job requires one."""
    asking = [
        member
        for member in job.demand.members
        if member.within is Within.NVLINK and member.devices > 1
    ]
    for kinds in dict.fromkeys(member.device_types for member in asking):
        yield (
            frozenset(node.name for node in snapshot.nodes if not node.has_nvlink(kinds)),
            Reason(
                code=ReasonCode.NO_CELL_OF_LEVEL,
                message=message("no-nvlink"),
                unblock=(message("omit-nvlink"),),
            ),
        )


def _gibibytes(found: Requirements) -> float:
    return round(found.device_memory / 2**30, 1)


def _is_for_others(node: NodeFacts, tenant: int) -> bool:
    return bool(node.tenants) and tenant not in node.tenants


def _share_suffices(demand: Demand, node: NodeFacts) -> bool:
    """Return whether the share of its devices suffices for each instance and its companions."""
    return all(
        _enough(load.cpus, load.companion_cpus, load.devices * node.cpus_per_device)
        and _enough(load.memory, load.companion_memory, load.devices * node.memory_per_device)
        for load in _loads(demand)
    )


class _Load(NamedTuple):
    """Requests of one instance with devices, and of its companions."""

    devices: int
    cpus: float | None
    memory: int | None
    companion_cpus: float
    companion_memory: int


@by_demand
def _loads(demand: Demand) -> frozenset[_Load]:
    if not demand.companions:
        return frozenset(_Load(m.devices, m.cpus, m.memory, 0.0, 0) for m in demand.members)
    instances = [member for member in demand.members for _ in range(member.count)]
    return frozenset(
        _Load(member.devices, member.cpus, member.memory, *demand.companion_load(position))
        for position, member in enumerate(instances)
    )


def _enough(wanted: float | None, companions: float, there: float) -> bool:
    # Nodes without declarations are not checked.
    if there <= 0 or (wanted is None and not companions):
        return True
    # An instance without a request gets the rest after its companions, which must exceed 0.
    return companions < there if wanted is None else wanted + companions <= there


def _share_reason(job: QueuedJob, nodes: Sequence[NodeFacts]) -> Reason:
    cpus = max(node.cpus_per_device for node in nodes)
    memory = max(node.memory_per_device for node in nodes)
    return Reason(
        code=ReasonCode.CPU_OR_MEMORY,
        message=message("cpu-or-memory", cpus=cpus, gigabytes=memory / 1e9),
        unblock=(message("ask-more-devices"),),
    )
