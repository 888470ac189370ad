"""Link tables of the cluster: probe jobs of admins, their reports, and the links of planners."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import reduce
from operator import or_
from typing import Any, Final

from django.db import transaction
from django.db.models import Count, Max, Q

from scheduling.clusters.models import Device
from scheduling.core.messages import sentence
from scheduling.jobs.models import LIVE_STATES, Job
from scheduling.jobs.queries.submit_context import SubmitContext
from scheduling.jobs.services.lifecycle import Note, record_job_event
from scheduling.jobs.services.submission import Submission, submit_job
from scheduling.parallelism.models import LinkMeasurement, LinkProbe
from scheduling.runs.models import Attempt, Member
from scheduling.topology.current import current_topology
from tenants.errors import ConflictError, InvalidError
from tenants.roles import Permission
from tenants.viewers import Viewer

MOST_NODES: Final = 2
MOST_DEVICES: Final = 16
"""Maximum number of devices of a probe on one node."""
MOST_SECONDS: Final = 600
"""Time limit of a probe job."""
VALID: Final = timedelta(days=90)
"""Age up to which planners use a measurement."""
LINKS_EVENT: Final = "links"
COMMAND: Final = "exec python3 -m tessera.train.launch -m tessera.train.links"

Points = Mapping[str, tuple[tuple[str, int, int, float], ...]]
"""Measured messages by class of link."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTableView:
    """Measured links of one class.

    Attributes:
        device_type: type of the devices.
        link_class: level of cells, or ``network``.
        transport: ``gloo`` or ``tcp``.
        latency: seconds of the smallest message.
        bandwidth: bytes per second of the largest message.
        spread: relative spread of repetitions.
        pairs: number of measured pairs.
        points: entries ``[primitive, group, bytes, seconds]``.
        nodes: nodes of the measured devices.
        job: ID of the probe job, if it exists still.
        is_used: whether planners use the table; older ones are replaced by projections.
    """

    device_type: str
    link_class: str
    transport: str
    latency: float
    bandwidth: float
    spread: float
    pairs: int
    points: Sequence[Sequence[Any]]
    nodes: tuple[str, ...]
    job: int | None
    measured_at: datetime
    is_used: bool


def probe_links(
    *,
    viewer: Viewer,
    device_type: str,
    virtual_cluster: str,
    nodes: int,
    submit_context: SubmitContext,
    now: datetime,
) -> Job:
    """Submit a job that measures the links between whole nodes of one type.

    Args:
        viewer: an admin of nodes, who owns the job.
        device_type: type of the devices.
        virtual_cluster: virtual cluster of the job.
        nodes: 1 for links within a node, 2 for links between nodes, too.
        submit_context: data for the submit.
        now: time of the request.

    Raises:
        ForbiddenError: the viewer does not manage nodes.
        InvalidError: an unknown type, or a wrong number of nodes.
        ConflictError: another probe of this type is live.
        InvalidJobError: the job does not fit into the virtual cluster.
    """
    viewer.require(Permission.MANAGE_NODES, what="nodes")
    if not 1 <= nodes <= MOST_NODES:
        raise InvalidError(
            sentence("probe-nodes-out-of-range", most=MOST_NODES),
            field="nodes",
            value=nodes,
            remedy=sentence("probe-nodes-remedy", most=MOST_NODES),
        )
    devices = _node_devices(device_type)
    if not devices or devices * nodes < 2:
        raise InvalidError(
            sentence("probe-needs-two-devices"),
            field="device_type",
            value=device_type,
            remedy=sentence("probe-type-remedy"),
        )
    document = _document(device_type, virtual_cluster, nodes=nodes, devices=devices)
    with transaction.atomic():
        # The row of one device lets only one request for this type be here at a time.
        of_type = Device.objects.filter(retired_at=None, device_type=device_type).order_by("pk")
        of_type.select_for_update().values_list("pk", flat=True).first()
        live = LinkProbe.objects.filter(device_type=device_type, job__state__in=LIVE_STATES)
        if (other := live.values_list("job_id", flat=True).first()) is not None:
            raise ConflictError(sentence("probe-is-live", job=other))
        job, _ = submit_job(
            submission=Submission(document=document, source_format="native"),
            viewer=viewer,
            submit_context=submit_context,
            now=now,
        )
        LinkProbe.objects.create(job=job, device_type=device_type, requested_at=now)
    return job


def _document(
    device_type: str, virtual_cluster: str, *, nodes: int, devices: int
) -> Mapping[str, Any]:
    """Return the specification of a probe job on whole nodes."""
    worker = {
        "instances": nodes,
        "devices": devices,
        "device_types": [device_type],
        "command": COMMAND,
    }
    return {
        "name": "link probe",
        "virtual_cluster": virtual_cluster,
        "class": "opportunistic",
        "roles": {"worker": worker},
        "max_duration": MOST_SECONDS,
        "notify": {"on": []},
    }


def store_links(*, job_id: int, attempt: int, document: Mapping[str, Any], now: datetime) -> bool:
    """Store the link tables that a probe job has reported; return whether it is one.

    An invalid document only adds an event to the job.
    """
    from scheduling.core.grids import GridInputError  # noqa: PLC0415  brings NumPy
    from scheduling.core.grids.link_documents import read_links  # noqa: PLC0415

    probe = LinkProbe.objects.filter(pk=job_id).first()
    if probe is None:
        return False
    run = Attempt.objects.get(job=job_id, number=attempt)
    addresses, nodes = _places(run)
    try:
        found = read_links(document, addresses, _levels(probe.device_type))
    except GridInputError as error:
        note = Note(attempt=attempt, text=sentence("links-refused", reason=str(error)[:200]))
        record_job_event(job_id=job_id, kind=LINKS_EVENT, now=now, note=note)
        return True
    for one in found:
        LinkMeasurement.objects.update_or_create(
            device_type=probe.device_type,
            link_class=one.link_class,
            defaults={
                "transport": one.transport,
                "points": [list(point) for point in one.points],
                "spread": one.spread,
                "pairs": one.pairs,
                "nodes": nodes,
                "job_id": job_id,
                "measured_at": now,
            },
        )
    note = Note(attempt=attempt, text=sentence("links-stored", classes=len(found)))
    record_job_event(job_id=job_id, kind=LINKS_EVENT, now=now, note=note)
    return True


def measured_points(device_type: str, *, now: datetime) -> Points:
    """Return the valid measurements of a device type by class of link."""
    rows = LinkMeasurement.objects.filter(
        device_type=device_type, measured_at__gt=now - VALID
    ).values_list("link_class", "points")
    return {name: tuple((p[0], p[1], p[2], p[3]) for p in points) for name, points in rows}


def before_newest_links() -> Q:
    """Match profiles whose grids do not use the newest measurement of the links of their type."""
    newest = (
        LinkMeasurement.objects.order_by().values("device_type").annotate(at=Max("measured_at"))
    )
    return reduce(
        or_,
        (Q(device_type=row["device_type"], measured_at__lt=row["at"]) for row in newest),
        Q(pk__in=()),
    )


def spans_of(device_type: str) -> tuple[tuple[str, int], ...]:
    """Return the levels above the device of the largest chain of a type, with their devices."""
    chains = [one for one in current_topology().chains.values() if one.device_type == device_type]
    chain = max(chains, key=lambda one: one.devices, default=None)
    if chain is None:
        return ()
    return tuple((level.level, level.devices) for level in chain.levels if level.number > 1)


def link_tables(viewer: Viewer, *, now: datetime) -> tuple[LinkTableView, ...]:
    """Return all measured links by type and class, in one query.

    Raises:
        ForbiddenError: the viewer does not manage nodes.
    """
    viewer.require(Permission.MANAGE_NODES, what="nodes")
    rows = LinkMeasurement.objects.order_by("device_type", "pk")
    return tuple(_view(row, now) for row in rows)


def links_of_node(viewer: Viewer, node: str, *, now: datetime) -> tuple[LinkTableView, ...]:
    """Return the measured links of which a node was a part, in one query.

    Raises:
        ForbiddenError: the viewer does not manage nodes.
    """
    return tuple(row for row in link_tables(viewer, now=now) if node in row.nodes)


def _view(row: LinkMeasurement, now: datetime) -> LinkTableView:
    sends = sorted((p[2], p[3]) for p in row.points if p[0] == "send")
    return LinkTableView(
        device_type=row.device_type,
        link_class=row.link_class,
        transport=row.transport,
        latency=sends[0][1] if sends else 0.0,
        bandwidth=sends[-1][0] / max(sends[-1][1], 1e-9) if sends else 0.0,
        spread=row.spread,
        pairs=row.pairs,
        points=row.points,
        nodes=tuple(row.nodes),
        job=row.job_id,
        measured_at=row.measured_at,
        is_used=row.measured_at > now - VALID,
    )


def _node_devices(device_type: str) -> int:
    """Return the devices of the smallest node of a type; 0 if there is none."""
    counts = (
        Device.objects.filter(retired_at=None, device_type=device_type)
        .order_by()
        .values("node")
        .annotate(number=Count("pk"))
        .values_list("number", flat=True)
    )
    return min(MOST_DEVICES, min(counts, default=0))


def _levels(device_type: str) -> tuple[str, ...]:
    return ("device", *(name for name, _ in spans_of(device_type)))


def _places(run: Attempt) -> tuple[list[str], list[str]]:
    """Return the addresses of the devices in the order of ranks, and the names of the nodes."""
    members = list(
        Member.objects.filter(attempt=run)
        .order_by("node_rank")
        .values_list("node_id", "node__name", "devices")
    )
    known = {
        (node, index): address.partition("~")[0]
        for node, index, address in Device.objects.filter(
            node__in=[node for node, _, _ in members]
        ).values_list("node_id", "index", "address")
    }
    addresses = [known[node, index] for node, _, indices in members for index in indices]
    return addresses, sorted({name for _, name, _ in members})
