"""Rows that preparations of runs need: gangs, secrets, devices and last checkpoints."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from django.db.models import OuterRef, Subquery

from scheduling.clusters.models import Device
from scheduling.common.canonical_json import canonical_json
from scheduling.core.jobspec import JobSpec, Processes, parse_stored
from scheduling.jobs.models import CHECKPOINT, JobEvent, JobSecret
from scheduling.parallelism.models import AttemptPlan
from scheduling.runs.models import Attempt, Member
from workers.services.environment import AttemptGang, GangMember
from workers.services.gang_networks import DataAddress, NodeNetwork, data_addresses
from workers.transports.base import LastSaved


def read_gangs(attempts: Mapping[int, Attempt]) -> dict[int, AttemptGang]:
    """Read the gangs of attempts, by the key of the attempt, in one query.

    Members of a gang on several nodes have their addresses in the network of the gang.
    """
    peers: dict[int, list[GangMember]] = defaultdict(list)
    nodes: dict[int, dict[int, NodeNetwork]] = defaultdict(dict)
    places: dict[int, list[int]] = defaultdict(list)
    adapters: dict[int, Sequence[str]] = {}
    rows = (
        Member.objects.filter(attempt_id__in=list(attempts))
        .order_by("attempt_id", "node_rank")
        .values_list(
            "attempt_id", "role", "rank", "node_rank", "devices", "ports", "node_id", "node__host",
            "node__data_interface", "node__inventory__interfaces", "node__inventory__infiniband",
        )
    )  # fmt: skip
    for attempt_id, role, rank, node_rank, devices, ports, node_id, host, chosen, *found in rows:
        interfaces, infiniband = found
        places[attempt_id].append(node_id)
        adapters[node_id] = infiniband or ()
        nodes[attempt_id][node_id] = NodeNetwork(
            host=host,
            chosen=chosen,
            interfaces=tuple(
                (one["name"], one["address"], one["speed"]) for one in interfaces or ()
            ),
        )
        peers[attempt_id].append(
            GangMember(
                role=role,
                rank=rank,
                node_rank=node_rank,
                host=host,
                devices=tuple(devices),
                ports=ports,
            )
        )
    for attempt_id, members in peers.items():
        if len(nodes[attempt_id]) > 1:
            addresses = data_addresses(nodes[attempt_id])
            peers[attempt_id] = [
                _in_network(member, addresses.get(node_id), adapters[node_id])
                for member, node_id in zip(members, places[attempt_id], strict=True)
            ]
    plans = _plans(attempts)
    specs: dict[bytes, JobSpec] = {}  # jobs of a burst have equal documents
    return {
        pk: _gang(attempt, peers[pk], plans.get(pk), _parsed(attempt.job.spec, specs))
        for pk, attempt in attempts.items()
    }


def _parsed(document: Mapping[str, Any], known: dict[bytes, JobSpec]) -> JobSpec:
    key = canonical_json(document)
    if key not in known:
        known[key] = parse_stored(document)
    return known[key]


def _plans(attempts: Mapping[int, Attempt]) -> Mapping[int, Mapping[str, Any]]:
    """Return the parallel plans of hybrid jobs, by attempt; no query without such a job."""
    hybrid = [pk for pk, attempt in attempts.items() if attempt.job.model_fingerprint]
    if not hybrid:
        return {}
    rows = AttemptPlan.objects.unscoped().filter(attempt__in=hybrid)
    return dict(rows.values_list("attempt_id", "plan"))


def _in_network(
    member: GangMember, place: DataAddress | None, adapters: Sequence[str]
) -> GangMember:
    """Return a member of a gang on several nodes with its address in the network of the gang."""
    if place is None:
        return replace(member, adapters=adapters)
    return replace(
        member,
        host=place.address,
        node_host=member.host,
        interface=place.interface,
        adapters=adapters,
    )


def _gang(
    attempt: Attempt,
    members: Iterable[GangMember],
    plan: Mapping[str, Any] | None,
    spec: JobSpec,
) -> AttemptGang:
    job = attempt.job
    return AttemptGang(
        spec=spec,
        job_id=job.pk,
        job_name=job.name,
        attempt_number=attempt.number,
        tenant=job.virtual_cluster.tenant.name,
        virtual_cluster=job.virtual_cluster.name,
        user=job.owner.username,
        port=attempt.port,
        members=tuple(
            replace(member, processes=len(member.devices))
            if spec.roles[member.role].processes is Processes.PER_DEVICE
            else member
            for member in members
        ),
        layout=attempt.layout,
        plan=plan,
    )


def read_sealed_secrets(job_ids: Collection[int]) -> dict[tuple[int, str], dict[str, bytes]]:
    """Read the encrypted secrets by name, by the job and role that they belong to."""
    found: dict[tuple[int, str], dict[str, bytes]] = defaultdict(dict)
    for row in JobSecret.objects.filter(job_id__in=list(job_ids)):
        found[row.job_id, row.role][row.name] = bytes(row.sealed)
    return found


class GpuNames(NamedTuple):
    """Identity of a GPU: its UUID, and its current index in the driver."""

    uuid: str
    driver_index: int


def read_devices(
    node_ids: Collection[int],
) -> tuple[dict[int, dict[int, GpuNames]], dict[int, dict[int, tuple[float, int]]]]:
    """Return GPU names, and the share of CPUs and memory of each device, by node."""
    gpus: dict[int, dict[int, GpuNames]] = defaultdict(dict)
    shares: dict[int, dict[int, tuple[float, int]]] = defaultdict(dict)
    for device in Device.objects.filter(node_id__in=list(node_ids), retired_at=None):
        shares[device.node_id][device.index] = (device.cpus, device.memory_bytes)
        if device.is_gpu:
            index = device.index if device.driver_index is None else device.driver_index
            gpus[device.node_id][device.index] = GpuNames(device.uuid, index)
    return dict(gpus), dict(shares)


def last_saved(attempts: Iterable[Attempt]) -> Mapping[int, LastSaved]:
    """Return the last reported checkpoints before these attempts, by attempt.

    The first process of a gang saves, so a checkpoint is on the node of its first member.
    """
    again = {attempt.pk: attempt for attempt in attempts if attempt.number > 1}
    if not again:
        return {}
    reported = JobEvent.objects.filter(
        job=OuterRef("job"), kind=CHECKPOINT, attempt__lt=OuterRef("number")
    ).order_by("-id")
    newest = dict(
        Attempt.objects.filter(pk__in=list(again))
        .annotate(reported=Subquery(reported.values("id")[:1]))
        .filter(reported__isnull=False)
        .values_list("pk", "reported")
    )
    events = JobEvent.objects.in_bulk(list(newest.values()))
    nodes = _first_nodes(events.values())
    found = {}
    for pk, event_id in newest.items():
        event = events[event_id]
        where = nodes.get((event.job_id, event.attempt))
        step, sha256 = event.detail.get("step"), event.detail.get("sha256")
        if where is None or not isinstance(step, int) or not isinstance(sha256, str):
            continue
        found[pk] = LastSaved(node_id=where[0], node=where[1], step=step, sha256=sha256)
    return found


def _first_nodes(
    events: Iterable[JobEvent],
) -> Mapping[tuple[int, int | None], tuple[int, str]]:
    """Return row and name of the first member's node, by the job and attempt of the event."""
    members = Member.objects.filter(
        node_rank=0,
        attempt__job__in={event.job_id for event in events},
        attempt__number__in={event.attempt for event in events},
    ).values_list("attempt__job_id", "attempt__number", "node_id", "node__name")
    return {(job, number): (node_id, name) for job, number, node_id, name in members}
