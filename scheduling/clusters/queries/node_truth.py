"""Comparison of database, runner and last probe for each device of a node."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scheduling.clusters.models import Node
from scheduling.clusters.queries.cluster import DeviceView, NodeView
from scheduling.clusters.queries.cluster_facts import ClusterFacts
from scheduling.core.messages import sentence
from scheduling.enums import MemberStep
from scheduling.runs.queries.node_members import OpenMember
from tenants.viewers import ANOTHER_TENANT


@dataclass(frozen=True, slots=True, kw_only=True)
class TruthRow:
    """The state of one device according to database, runner and probe.

    Attributes:
        database: the job with an open lease; empty if there is none.
        runner: the process that the node reported; empty if there is none.
        device: result of the last probe: present, missing, or unhealthy with the reason.
        verdict: ``agree``, or the contradiction.
    """

    device_index: int
    job_id: int | None
    database: str
    runner: str
    device: str
    verdict: str

    @property
    def agrees(self) -> bool:
        return self.verdict == "agree"


def truth_of(
    node: Node,
    view: NodeView,
    *,
    members: Sequence[OpenMember],
    found: Mapping[str, Any],
    facts: ClusterFacts,
    uuids: Mapping[int, str],
) -> tuple[TruthRow, ...]:
    """Return the comparison of each device.

    Args:
        node: the node.
        view: the node for the viewer.
        members: its open members.
        found: inventory of the last probe.
        facts: the leases.
        uuids: UUIDs of the devices by primary key.
    """
    by_device = {index: member for member in members for index in member.devices}
    listed = found.get("devices")
    present = (
        {entry.get("uuid") or entry.get("index") for entry in listed if isinstance(entry, dict)}
        if isinstance(listed, list)
        else None
    )
    leased = {lease.device_id for lease in facts.leases if not lease.reserved}
    return tuple(
        _truth_row(
            node=node,
            device=device,
            member=by_device.get(device.index),
            is_leased=device.id in leased,
            is_present=present is None or (uuids.get(device.id) or device.index) in present,
        )
        for device in view.devices
    )


def _truth_row(
    *,
    node: Node,
    device: DeviceView,
    member: OpenMember | None,
    is_leased: bool,
    is_present: bool,
) -> TruthRow:
    occupant = device.occupant if is_leased else None
    database = ""
    if occupant is not None:
        is_known = occupant.job_id is not None
        database = (
            occupant.name
            if is_known
            else sentence("job-of-tenant", tenant=occupant.tenant or ANOTHER_TENANT)
        )
    runs = member is not None and member.step == MemberStep.RUNNING
    summary = "" if member is None else member.step
    if member is not None and runs:
        summary = sentence("process-id", pid=str(member.pid))
    condition = "present" if is_present else "missing"
    if not device.healthy:
        condition = device.health_reason or "unhealthy"
    return TruthRow(
        device_index=device.index,
        job_id=occupant.job_id if occupant else None,
        database=database,
        runner=summary,
        device=condition,
        verdict=_verdict(node, member, is_leased=is_leased, is_present=is_present),
    )


def _verdict(node: Node, member: OpenMember | None, *, is_leased: bool, is_present: bool) -> str:
    """Return the most serious contradiction."""
    faults = (
        (node.contact != "ready", sentence("truth-unknown")),
        (member is not None and not is_leased, sentence("truth-unleased")),
        (is_leased and member is None, sentence("truth-leased-idle")),
        (is_leased and not is_present, sentence("truth-leased-gone")),
        (not is_present, sentence("truth-device-gone")),
        (
            member is not None and member.boot_id not in ("", node.boot_id),
            sentence("truth-restarted"),
        ),
    )
    return next((words for is_so, words in faults if is_so), "agree")
