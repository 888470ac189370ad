"""Jobs that wait, run and have ended, moved there by rounds and by what nodes report."""

import random
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from scheduling.clusters.models import Device, VcValues, VirtualCluster
from scheduling.clusters.services.cluster_edits import ArchiveVc, ChangeVc, CreateVc
from scheduling.clusters.services.reconfiguration import edit_virtual_cluster
from scheduling.core.lifecycle import JobState
from scheduling.jobs.models import Job
from scheduling.rounds.services import rounds
from scheduling.rounds.snapshot import RoundConfig
from scheduling.runs.models import Attempt, Lease, Member
from scheduling.runs.services import attempts
from tenants.models import Tenant, User
from tenants.roles import Role
from tenants.viewers import Viewer
from tessera import protocol
from tests.factories.cluster import (
    NOW,
    job_document,
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.tenants import make_tenant, make_user, make_viewer

CONFIG = RoundConfig(round_seconds=10.0, images_required=True, using="default")
ADMIN = Viewer.system("tests")


def make_two_tenants(nodes: int = 3) -> tuple[VirtualCluster, VirtualCluster]:
    """Vision with alice and its lead ada, language with bob; a whole node each; carol nowhere."""
    make_cluster(nodes)
    make_priority_classes()
    vision = make_tenant("vision", alice=Role.MEMBER, ada=Role.LEAD)
    language = make_tenant("language", bob=Role.MEMBER)
    make_user("carol")
    make_user("root", is_cluster_admin=True)
    return (
        make_virtual_cluster("vision-a", vision),
        make_virtual_cluster("language-a", language),
    )


def submit(username: str = "alice", devices: int = 1, **changes: Any) -> Job:
    """A queued job of alice in vision-a, or of bob in language-a."""
    changes.setdefault("virtual_cluster", {"bob": "language-a"}.get(username, "vision-a"))
    worker = {"devices": devices, **changes.pop("worker", {})}
    return make_job(username, job_document(worker=worker, **changes))


def run_round(at: datetime = NOW, **more: Any) -> rounds.RoundOutcome:
    """One round that stores no evidence; ``more``: other arguments of the service."""
    return rounds.run_round(now=lambda: at, config=CONFIG, store=lambda *_: ("", "", 0), **more)


def start(*jobs: Job, at: datetime = NOW, **more: Any) -> None:
    """Run a round, and let the nodes report that all that was placed runs."""
    run_round(at, **more)
    for job in jobs:
        members = list(Member.objects.filter(attempt__job=job, step="waiting"))
        attempts.mark_preparing(member_ids=[member.pk for member in members], now=at)
        for member in members:
            attempts.mark_prepared(member_id=member.pk, now=at)
        for member in members:
            attempts.mark_running(member_id=member.pk, pid=100, boot_id="", started_at=at, now=at)
        job.refresh_from_db()
        assert job.state == JobState.RUNNING, job.state


def end(job: Job, code: int = 0, at: datetime = NOW) -> None:
    """Let every rank of a running job exit with ``code``."""
    record = protocol.ExitRecord(
        cause=protocol.CAUSE_EXITED,
        failure="" if code == 0 else protocol.USER,
        at=at.timestamp(),
        code=code,
    )
    for member in Member.objects.filter(attempt__job=job, attempt__ended_at=None):
        attempts.mark_exited(member_id=member.pk, record=record, now=at)
    job.refresh_from_db()


def viewers_of_everybody() -> Mapping[str, Viewer]:
    """A viewer for each person there is."""
    return {name: make_viewer(name) for name in User.objects.values_list("username", flat=True)}


def make_many_jobs(
    count: int, *, owner: str, virtual_cluster: VirtualCluster, tenant: Tenant
) -> list[Job]:
    """Queued jobs written straight into the table, for tests of size."""
    user = User.objects.get(username=owner)
    demand = {"members": [["worker", 1, 1, [], "node", None, None, False]]}
    return Job.objects.unscoped().bulk_create(
        Job(
            name=f"{owner}-{number}",
            tenant=tenant,
            virtual_cluster=virtual_cluster,
            owner=user,
            state_since=NOW,
            spec={"name": f"{owner}-{number}"},
            demand=demand,
            devices=1,
            submitted_at=NOW + timedelta(seconds=number),
            reason_code="vc-guarantee-in-use",
            reason_text="All of it is in use.",
        )
        for number in range(count)
    )


def hold_devices(jobs: Sequence[Job], devices: Sequence[Device], *, chance: random.Random) -> None:
    """Give each job one device, half of them outside the guarantee, for tests of size."""
    Job.objects.unscoped().filter(pk__in=[job.pk for job in jobs]).update(
        state=JobState.RUNNING, started_at=NOW, first_started_at=NOW
    )
    made = Attempt.objects.bulk_create(
        Attempt(
            job=job,
            number=1,
            uid=f"{job.pk:032x}",
            round_number=1,
            port=15000 + number,
            created_at=NOW,
            running_at=NOW,
        )
        for number, job in enumerate(jobs)
    )
    members = Member.objects.bulk_create(
        Member(
            attempt=attempt,
            node_id=device.node_id,
            role="worker",
            rank=0,
            node_rank=0,
            devices=[device.index],
            step="running",
            step_since=NOW,
            started_at=NOW,
        )
        for attempt, device in zip(made, devices, strict=False)
    )
    Lease.objects.bulk_create(
        Lease(
            device=device,
            attempt=member.attempt,
            member=member,
            job_id=member.attempt.job_id,
            virtual_cell="vc/0" if chance.random() < 0.5 else "",
            taken_at=NOW,
        )
        for member, device in zip(members, devices, strict=False)
    )


def create_vc(name: str = "vision-b", tenant: str = "vision", **wanted: Any) -> VirtualCluster:
    """A new virtual cluster through the service; ``wanted``: columns, cells, pinned, viewer."""
    viewer, shape = wanted.pop("viewer", ADMIN), _shape_of(wanted)
    edit = CreateVc(name=name, tenant=tenant, values=VcValues(**wanted), **shape)
    edit_virtual_cluster(viewer=viewer, edit=edit, now=NOW)
    return VirtualCluster.objects.unscoped().get(name=name)


def change_vc(name: str, **wanted: Any) -> VirtualCluster:
    """Edit through the service; ``wanted``: columns, cells, pinned, viewer, expected_version."""
    viewer, seen = wanted.pop("viewer", ADMIN), wanted.pop("expected_version", None)
    edit = ChangeVc(virtual_cluster=name, **_shape_of(wanted), values=wanted)
    edit_virtual_cluster(viewer=viewer, edit=edit, now=NOW, expected_version=seen)
    return VirtualCluster.objects.unscoped().get(name=name)


def archive_vc(name: str, viewer: Viewer = ADMIN) -> VirtualCluster:
    """Archive through the service."""
    edit_virtual_cluster(viewer=viewer, edit=ArchiveVc(virtual_cluster=name), now=NOW)
    return VirtualCluster.objects.unscoped().get(name=name)


def _shape_of(wanted: dict[str, Any]) -> dict[str, Any]:
    """Take the guarantee out of ``wanted``."""
    return {part: wanted.pop(part) for part in ("cells", "pinned") if part in wanted}
