"""Canary jobs: their start on a device in quarantine, and the return of the device to service."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import DEFAULT_DB_ALIAS, IntegrityError, transaction

from scheduling.clusters.models import Device, Node, VirtualCluster
from scheduling.clusters.queries.conditions import canary_settings
from scheduling.clusters.services.cluster_edits import CreateVc
from scheduling.clusters.services.node_rows import node_to_edit
from scheduling.clusters.services.reconfiguration import edit_virtual_cluster
from scheduling.common.on_commit import node_has_changed, request_round_on_commit
from scheduling.core import canaries
from scheduling.core.lifecycle import TERMINAL, JobState
from scheduling.core.messages import sentence
from scheduling.core.round_result import PlacedMember, Start
from scheduling.core.values import HeldLeaf
from scheduling.enums import CanaryResult, CanaryState, NodeState
from scheduling.jobs.models import Job
from scheduling.jobs.queries.submit_context import read_submit_context
from scheduling.jobs.services.submission import Submission, submit_job
from scheduling.rounds.services.starts import create_attempts
from scheduling.rounds.snapshot import RoundConfig, next_round_number, take_snapshot
from scheduling.runs.models import Attempt, CanaryRun, Lease
from scheduling.runs.services.stopping import stop_job
from tenants import services as people
from tenants.audit import Actor, record
from tenants.errors import ConflictError, DomainError, NotFoundError
from tenants.models import Tenant, User
from tenants.roles import Role
from tenants.selectors import viewer_of
from tenants.viewers import Viewer
from tessera.isolation import CONTAINER

logger = logging.getLogger(__name__)

_SYSTEM: Final = Actor.system("canary")
_VIEWER: Final = Viewer.system("canary")
_NOTE: Final = "Jobs that test devices"


def check_device(
    *, viewer: Viewer, node_id: int, index: int, config: RoundConfig, now: datetime
) -> CanaryRun:
    """Start a canary job on a device that is not in service; if it passes, the device returns.

    A quarantine by an admin ends then, too. A fault that the last probe reported remains.

    Raises:
        NotFoundError: the device is unknown.
        ConflictError: the device is in service, in use or cannot be tested.
    """
    node = node_to_edit(viewer, node_id)
    device = node.devices.filter(index=index, retired_at=None).first()
    if device is None:
        raise NotFoundError(
            sentence("no-such-device", name=node.name, index=index), field="index", value=index
        )
    problem = _problem(device, node)
    if device.healthy:
        problem = sentence("canary-in-service")
    if problem:
        raise ConflictError(problem, field="device", value=index)
    try:
        run = _start(device, node, requested_by=viewer.username, config=config, now=now)
    except IntegrityError:
        raise ConflictError(sentence("canary-in-use"), field="device", value=index) from None
    record(actor=viewer, action="device.canary", obj=device, after={"job": run.job_id})
    return run


def start_due(*, config: RoundConfig, now: datetime) -> int:
    """Start the canary jobs of all devices that wait for one; return their number."""
    started = 0
    due = Device.objects.filter(
        canary=CanaryState.DUE, disabled_reason="", fault="", retired_at=None
    )
    for device in due.select_related("node").order_by("pk"):
        if not _may_start(device, now) or _problem(device, device.node):
            continue
        try:
            _start(device, device.node, requested_by="", config=config, now=now)
        except (DomainError, IntegrityError):
            logger.exception("no canary job was started on %s", device.address)
            continue
        started += 1
    return started


def _may_start(device: Device, now: datetime) -> bool:
    """Return whether a device is not tested now, and no run has just ended without a result."""
    last = device.canaries.first()
    if last is None:
        return True
    wait = timedelta(seconds=canaries.RETRY_SECONDS)
    return last.ended_at is not None and (
        last.result != CanaryResult.UNTESTED or last.ended_at + wait <= now
    )


def _problem(device: Device, node: Node) -> str:
    """Return why no canary job can start on a device now; empty if one can."""
    settings = canary_settings()
    if node.state != NodeState.READY:
        return sentence("canary-node-not-ready", name=node.name)
    if not device.is_gpu or not canaries.is_testable(
        reader=str(node.inventory.get("reader") or ""),
        isolation=node.isolation_level,
        has_engine=node.has_docker,
        settings=replace(settings, enabled=True),
    ):
        return sentence("canary-not-testable")
    if device.leases.filter(released_at=None).exists():
        return sentence("canary-in-use")
    reported = node.inventory.get("devices", ())
    if device.uuid and device.uuid not in {one.get("uuid") for one in reported}:
        return sentence("canary-missing")
    return ""


@transaction.atomic
def _start(
    device: Device, node: Node, *, requested_by: str, config: RoundConfig, now: datetime
) -> CanaryRun:
    """Submit a canary job, and start it on the device.

    Rounds place no job on the device, because it is not healthy. So its start is a commit of its
    own, which the unique lease of the device protects, and the job is never in the queue.
    """
    settings = canary_settings()
    viewer = _system_user(now)
    job, _ = submit_job(
        submission=Submission(document=canaries.document(device.device_type, settings)),
        viewer=viewer,
        submit_context=read_submit_context(
            viewer=viewer, images_ignored=not config.images_required
        ),
        now=now,
    )
    number = next_round_number(DEFAULT_DB_ALIAS) - 1
    reading = take_snapshot(number=number, now=now, config=replace(config, using=DEFAULT_DB_ALIAS))
    member = PlacedMember(
        role=canaries.ROLE,
        rank=0,
        node_rank=0,
        node=node.name,
        device_indices=(device.index,),
        leaves=(HeldLeaf(address=device.address, virtual=""),),
        isolation=CONTAINER if settings.image else node.isolation_level,
    )
    start = Start(job_id=job.pk, opportunistic=True, members=(member,))
    create_attempts(number=number, starts=[start], reading=reading, now=now)
    return CanaryRun.objects.create(
        device=device, job=job, requested_by=requested_by, requested_at=now
    )


def _system_user(now: datetime) -> Viewer:
    """Return the owner of canary jobs; tenant, virtual cluster and user exist from the first.

    Raises:
        ConflictError: a person signs in with this name, and would own the jobs.
    """
    user = User.objects.filter(username=canaries.SYSTEM_USER).first()
    tenant = Tenant.objects.unscoped().filter(name=canaries.SYSTEM_TENANT).first()
    if user is not None and user.last_login is not None:
        raise ConflictError(
            sentence("canary-account-of-person", name=user.username), field="username"
        )
    if user is None:
        user = people.create_user(viewer=_VIEWER, username=canaries.SYSTEM_USER)
    if tenant is None:
        tenant = people.create_tenant(viewer=_VIEWER, name=canaries.SYSTEM_TENANT, note=_NOTE)
    if not tenant.memberships.filter(user=user).exists():
        people.add_member(
            viewer=_VIEWER, tenant_id=tenant.pk, username=user.username, role=Role.MEMBER
        )
    clusters = VirtualCluster.objects.unscoped().filter(name=canaries.VIRTUAL_CLUSTER)
    if not clusters.exists():
        edit = CreateVc(name=canaries.VIRTUAL_CLUSTER, tenant=canaries.SYSTEM_TENANT)
        edit_virtual_cluster(viewer=_VIEWER, edit=edit, now=now)
    return viewer_of(user)


# -- ends ----------------------------------------------------------------------------------------


def store_canary(*, job_id: int, document: Mapping[str, Any]) -> None:
    """Store the figures that a canary job has reported; other jobs report none."""
    CanaryRun.objects.filter(job_id=job_id, ended_at=None).update(
        figures=canaries.figures_of(document)
    )


def finish_ended(*, now: datetime) -> int:
    """Record the results of canary jobs that have ended; return their number.

    A job that was requeued, for example by a drain, is stopped: it could run on another device.
    """
    finished = 0
    for run in CanaryRun.objects.filter(ended_at=None).select_related("job", "device"):
        job = run.job
        if job is not None and job.state == JobState.QUEUED:
            stop_job(job=job, viewer=_VIEWER, now=now)
            job.refresh_from_db()
        if job is None or JobState(job.state) in TERMINAL:
            _finish(run, job, now)
            finished += 1
    return finished


@transaction.atomic
def _finish(run: CanaryRun, job: Job | None, now: datetime) -> None:
    result = _result(run, job)
    cause = str(run.figures.pop("cause", "")) or (job.end_message if job is not None else "")
    written = CanaryRun.objects.filter(pk=run.pk, ended_at=None).update(
        ended_at=now, result=result, cause=cause[:500], figures=run.figures
    )
    if not written:
        return
    device = Device.objects.select_for_update().get(pk=run.device_id)
    before = _health(device)
    run.refresh_from_db(fields=["requested_by"])  # a later quarantine removes it
    if result == CanaryResult.PASSED:
        device.canary = ""
        if run.requested_by:
            device.disabled_reason, device.disabled_until = "", None
    elif device.canary and (result == CanaryResult.FAILED or _has_no_more_trials(device)):
        device.canary = CanaryState.FAILED
    device.set_health()
    columns = ["canary", "disabled_reason", "disabled_until", "healthy", "health_reason"]
    device.save(update_fields=columns)
    after = {**_health(device), "result": result, "cause": cause[:200], "job": run.job_id}
    record(actor=_SYSTEM, action="device.canary", obj=device, before=before, after=after)
    node_has_changed(device.node_id)
    request_round_on_commit("device")


def _result(run: CanaryRun, job: Job | None) -> CanaryResult:
    """Return the result of an ended job; only its first attempt ran on the device."""
    attempt = Attempt.objects.filter(job=job).order_by("-number").first() if job else None
    if attempt is None or not Lease.objects.filter(attempt=attempt, device=run.device_id).exists():
        return CanaryResult.UNTESTED
    if attempt.outcome == "succeeded":
        return CanaryResult.PASSED
    has_failed = attempt.outcome == "failed" and attempt.exit_code == canaries.FAILED_CODE
    return CanaryResult.FAILED if has_failed else CanaryResult.UNTESTED


def _has_no_more_trials(device: Device) -> bool:
    last = device.canaries.exclude(ended_at=None).values_list("result", flat=True)
    newest = list(last[: canaries.MOST_TRIALS])
    return newest == [CanaryResult.UNTESTED] * canaries.MOST_TRIALS


def _health(device: Device) -> dict[str, object]:
    return {"healthy": device.healthy, "reason": device.health_reason}
