"""Two people who change things at once, on a database on which threads really meet."""

import threading
from datetime import timedelta
from functools import partial

import pytest
from django.db import transaction

from scheduling.clusters.models import Node, PriorityClass, Topology, VcLimit, VcQuota
from scheduling.clusters.services.cluster_edits import MoveQuota
from scheduling.clusters.services.inventory import apply_inventory
from scheduling.clusters.services.nodes import cordon_node, remove_node, update_node
from scheduling.clusters.services.priority_classes import update_priority_class
from scheduling.clusters.services.reconfiguration import reconfigure
from scheduling.clusters.services.topology import DoesNotFitError
from scheduling.clusters.services.virtual_clusters import set_member_limits
from scheduling.core.lifecycle import JobEventKind
from scheduling.jobs.models import JobEvent
from scheduling.jobs.services.lifecycle import (
    apply_job_event,
    insist,
    record_job_event,
    try_job_event,
)
from scheduling.maintenance.invariants import violations
from scheduling.runs.models import Attempt, Member
from scheduling.runs.services.attempts import mark_all_prepared, mark_exited, mark_running
from scheduling.runs.services.stopping import stop_job
from tenants.errors import StaleEditError
from tenants.models import Membership
from tessera.inventory import Device as Found
from tessera.inventory import Inventory
from tessera.protocol import CAUSE_EXITED, ExitRecord
from tests.factories.cluster import make_virtual_cluster
from tests.factories.running import put_into, run_attempt
from tests.factories.scheduling import ADMIN, NOW, change_vc, make_two_tenants, submit
from tests.support.databases import at_once, migrated_template, real_database

__all__ = ["migrated_template", "real_database"]

pytestmark = pytest.mark.usefixtures("real_database")


def errors(outcomes):
    return [type(outcome) for outcome in outcomes if isinstance(outcome, Exception)]


def test_of_two_edits_of_one_node_from_the_same_version_one_is_told():
    make_two_tenants()
    node = Node.objects.get(name="node-1")

    outcomes = at_once(
        lambda: update_node(viewer=ADMIN, node_id=node.pk, now=NOW, port=2001, expected_version=1),
        lambda: cordon_node(
            viewer=ADMIN, node_id=node.pk, reason="x", now=NOW, expected_version=1
        ),
    )

    assert errors(outcomes) == [StaleEditError]
    node.refresh_from_db()
    assert node.version == 2
    assert (node.port == 2001) != (node.held == "cordoned")


def test_two_promises_that_fit_only_one_by_one_are_not_both_made():
    make_two_tenants()

    def promise(name):
        return lambda: change_vc(name, cells=[{"chain": "a-node", "level": "a-node", "count": 2}])

    outcomes = at_once(promise("vision-a"), promise("language-a"))

    assert errors(outcomes) == [DoesNotFitError]
    assert sorted(VcQuota.objects.values_list("count", flat=True)) == [1, 2]
    assert violations() == ()


def test_a_promise_and_the_removal_of_the_node_it_needs_do_not_both_happen():
    make_two_tenants()
    node = Node.objects.get(name="node-3")

    outcomes = at_once(
        lambda: remove_node(viewer=ADMIN, node_id=node.pk, now=NOW),
        lambda: change_vc("vision-a", cells=[{"chain": "a-node", "level": "a-node", "count": 2}]),
    )

    assert errors(outcomes) == [DoesNotFitError]
    assert violations() == ()


def test_nodes_that_are_probed_at_once_all_get_their_cells():
    make_two_tenants()
    rows = [
        Node.objects.create(name=f"new-{n}", host=f"new-{n}", state_since=NOW, created_at=NOW)
        for n in range(3)
    ]
    found = Inventory(
        devices=[Found(index=i, type="b", path=[]) for i in range(4)],
        levels=["node", "device"],
        cpus=8,
        memory_bytes=1 << 30,
    )

    outcomes = at_once(
        *(
            lambda node=node: apply_inventory(node_id=node.pk, inventory=found, now=NOW)
            for node in rows
        )
    )

    assert errors(outcomes) == []
    assert list(Topology.objects.order_by("version").values_list("version", flat=True)) == [
        1,
        2,
        3,
        4,
    ]
    assert violations() == ()


def test_of_two_new_defaults_exactly_one_remains():
    make_two_tenants()

    def make_default(name):
        pk = PriorityClass.objects.get(name=name).pk
        return lambda: update_priority_class(viewer=ADMIN, priority_class_id=pk, is_default=True)

    at_once(make_default("crit"), make_default("prod"))

    assert PriorityClass.objects.filter(is_default=True).count() == 1


def test_of_two_admins_who_move_the_same_quota_one_is_told():
    make_two_tenants()

    def move(target):
        edit = MoveQuota(source="vision-a", target=target, chain="a-node", level="a-node", count=1)
        return lambda: reconfigure(viewer=ADMIN, edits=[edit], now=NOW, expected_version=1)

    outcomes = at_once(move("language-a"), move("language-a"))

    assert errors(outcomes) == [StaleEditError]
    assert list(VcQuota.objects.values_list("virtual_cluster__name", "count")) == [
        ("language-a", 2)
    ]
    assert Topology.objects.count() == 2
    assert violations() == ()


def prepared(member):
    mark_all_prepared(member_ids=[member.pk], now=NOW)


def running(member):
    mark_running(member_id=member.pk, pid=7, boot_id="b", started_at=NOW, now=NOW)


def exited(member):
    record = ExitRecord(cause=CAUSE_EXITED, failure="", at=NOW.timestamp(), code=0)
    mark_exited(member_id=member.pk, record=record, now=NOW)


@pytest.mark.parametrize(
    ("report", "before", "job_before", "job_after"),
    [
        (prepared, "preparing", "starting", "starting"),
        (running, "starting", "starting", "running"),
        (exited, "running", "running", "succeeded"),
    ],
)
def test_of_two_services_that_report_the_last_members_at_once_one_sees_the_gang(
    report, before, job_before, job_after
):
    make_two_tenants()
    job = submit(worker={"instances": 2})
    first, second = Node.objects.order_by("pk")[:2]
    attempt = run_attempt(put_into(job, job_before, now=NOW), first, now=NOW)
    Member.objects.create(
        attempt=attempt,
        node=second,
        role="worker",
        rank=1,
        node_rank=1,
        devices=[0],
        step_since=NOW,
    )
    attempt.members.update(step=before)
    if before != "running":
        Attempt.objects.update(running_at=None)
    members = list(attempt.members.order_by("pk"))
    one_has_reported, other_has_reported = threading.Event(), threading.Event()

    def one():
        with transaction.atomic():
            report(members[0])
            one_has_reported.set()
            other_has_reported.wait(1.0)  # it has to wait for this one, which ends at last

    def other():
        assert one_has_reported.wait(60.0)
        report(members[1])
        other_has_reported.set()

    assert errors(at_once(one, other)) == []

    job.refresh_from_db()
    assert job.state == job_after
    if report is prepared:
        assert {member.step for member in attempt.members.all()} == {"starting"}


def test_of_two_who_limit_one_member_the_limits_of_one_stand():
    first, _ = make_two_tenants(nodes=4)
    names = [first.name, make_virtual_cluster("vision-b", first.tenant).name]
    member = Membership.objects.unscoped().get(user__username="alice", tenant=first.tenant)

    def limit(*allowed):
        return lambda: set_member_limits(
            viewer=ADMIN, membership_id=member.pk, virtual_clusters=allowed, now=NOW
        )

    outcomes = at_once(limit(names[0]), limit(names[1]))

    assert set(errors(outcomes)) <= {StaleEditError}
    limits = VcLimit.objects.filter(membership=member)
    (stands,) = limits.values_list("virtual_cluster__name", flat=True)
    assert (stands,) in outcomes


def test_events_of_two_writers_never_go_backwards_in_the_order_in_which_they_are_written():
    make_two_tenants()
    job = put_into(submit(), "running", now=NOW + timedelta(minutes=1))
    late, early = NOW + timedelta(hours=2), NOW + timedelta(seconds=1)

    outcomes = at_once(
        lambda: record_job_event(job_id=job.pk, kind="checkpoint", now=late),
        lambda: apply_job_event(job_id=job.pk, event=JobEventKind.CONTACT_LOST, now=early),
        lambda: record_job_event(job_id=job.pk, kind="resumed", now=early),
    )

    assert errors(outcomes) == []
    times = list(JobEvent.objects.filter(job=job).order_by("id").values_list("at", flat=True))
    assert times == sorted(times)
    job.refresh_from_db()
    assert (job.event_at, job.state) == (late, "suspect")
    assert job.state_since == JobEvent.objects.get(job=job, kind="contact-lost").at


@pytest.mark.parametrize("turn", range(5))
def test_a_stop_is_never_refused_because_the_job_moves(turn):
    make_two_tenants()
    job = submit()
    run_attempt(job, Node.objects.get(name="node-1"), now=NOW)
    put_into(job, "admitted", now=NOW)

    def move():
        for event in (JobEventKind.DISPATCH, JobEventKind.ALL_RUNNING, JobEventKind.CONTACT_LOST):
            insist(partial(try_job_event, job_id=job.pk, event=event, now=NOW))

    outcomes = at_once(move, *[lambda: stop_job(job=job, viewer=ADMIN, now=NOW)] * 3)

    assert outcomes == [None, "stopping", "stopping", "stopping"]
    assert JobEvent.objects.filter(job=job, kind="stop").count() == 1
    job.refresh_from_db()
    assert job.state == "stopping"
    assert stop_job(job=job, viewer=ADMIN, now=NOW) == "stopping"
