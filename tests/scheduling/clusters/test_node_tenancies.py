"""Nodes without isolation belong to one tenant until an admin resets them: in rows and rounds."""

import base64
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from scheduling.clusters.models import Node, NodeTenancy
from scheduling.clusters.services.node_tenancies import reset_isolation
from scheduling.clusters.services.nodes import add_node, fingerprint_of, remove_node, update_node
from scheduling.core.lifecycle import FailureClass, JobState
from scheduling.jobs.models import Job
from scheduling.runs.models import Attempt, Member
from scheduling.runs.services import attempts
from tenants.errors import ConflictError, ForbiddenError, InvalidError
from tenants.models import AuditEntry, Tenant
from tessera import protocol
from tests.factories.cluster import make_virtual_cluster
from tests.factories.scheduling import ADMIN, NOW, make_two_tenants, run_round, start, submit
from tests.factories.tenants import Role, make_tenant, make_viewer

pytestmark = pytest.mark.django_db

BORROWING: dict[str, Any] = {"class": "opportunistic"}


@pytest.fixture(autouse=True)
def _two_nodes_without_isolation():
    make_two_tenants(2)
    Node.objects.update(isolation_level="none", probed_at=NOW)


def nodes_of(job):
    members = Member.objects.filter(attempt__job=job)
    return set(members.values_list("node__name", flat=True))


def reason_of(job):
    return Job.objects.unscoped().get(pk=job.pk).reason_code


def end(job, at=NOW):
    for member in Member.objects.filter(attempt__job=job):
        record = protocol.ExitRecord(
            cause=protocol.CAUSE_EXITED, failure="", at=at.timestamp(), code=0
        )
        attempts.mark_exited(member_id=member.pk, record=record, now=at)
        attempts.mark_removed(member_ids=[member.pk], now=at)


def test_the_first_job_takes_the_node_for_its_tenant_in_the_rounds_commit():
    vision, language = submit("alice"), submit("bob")

    run_round()

    owners = dict(NodeTenancy.objects.unscoped().values_list("node__name", "tenant__name"))
    (node_a,), (node_b,) = nodes_of(vision), nodes_of(language)
    assert owners == {node_a: "vision", node_b: "language"}
    member = Member.objects.get(attempt__job=vision)
    assert member.tenancy is not None
    assert (member.least_isolation, member.tenancy.taken_by_job_id) == ("none", vision.pk)


def test_a_third_tenant_waits_with_the_reason_and_time_alone_frees_no_node():
    make_virtual_cluster("audio-a", make_tenant("audio", carol=Role.MEMBER), cells=0)
    first, second = submit("alice"), submit("bob")
    start(first, second)
    end(first)
    end(second)
    third = submit("carol", virtual_cluster="audio-a", **BORROWING)

    run_round(NOW + timedelta(days=30))

    assert reason_of(third) == "node-not-isolated"
    assert NodeTenancy.objects.unscoped().filter(reset_at=None).count() == 2


def test_an_admin_resets_a_node_and_the_next_tenant_gets_it():
    make_virtual_cluster("audio-a", make_tenant("audio", carol=Role.MEMBER), cells=0)
    borrower = submit("alice", devices=8, **BORROWING)
    job = submit("alice", devices=8)
    start(job)
    node = Node.objects.get(name=next(iter(nodes_of(job))))
    with pytest.raises(ConflictError, match="1 job is still on"):
        reset_isolation(viewer=ADMIN, node_id=node.pk, reason="cleaned", now=NOW)
    end(job)

    reset_isolation(viewer=ADMIN, node_id=node.pk, reason="home directory cleaned", now=NOW)

    tenancy = NodeTenancy.objects.unscoped().get()
    assert (tenancy.reset_at, tenancy.reset_reason) == (NOW, "home directory cleaned")
    entry = AuditEntry.objects.unscoped().get(action="node.reset_isolation")
    assert entry.before["tenant"] == "vision"
    assert reason_of(borrower) in {"node-not-isolated", ""}
    with pytest.raises(ConflictError, match="is not assigned to a tenant"):
        reset_isolation(viewer=ADMIN, node_id=node.pk, reason="again", now=NOW)


def address(name, host, key=0):
    """What an admin gives for a node; its key is as good as any that a person confirmed."""
    blob = len(b"ssh-ed25519").to_bytes(4, "big") + b"ssh-ed25519" + bytes([key] * 36)
    line = f"ssh-ed25519 {base64.b64encode(blob).decode()}"
    return {
        "name": name,
        "host": host,
        "port": 22,
        "user": "tessera",
        "host_key": line,
        "fingerprint": fingerprint_of(line),
    }


def owned_and_removed(**given):
    """A node whose last tenant was vision, and that was removed since."""
    node = add_node(viewer=ADMIN, now=NOW, **given)
    vision = Tenant.objects.unscoped().get(name="vision")
    NodeTenancy.objects.create(node=node, tenant=vision, taken_at=NOW, taken_by_job_id=7)
    remove_node(viewer=ADMIN, node_id=node.pk, now=NOW)
    return node


def owner_of(node):
    found = NodeTenancy.objects.unscoped().filter(node=node, reset_at=None).first()
    return None if found is None else (found.tenant.name, found.taken_at, found.taken_by_job_id)


@pytest.mark.parametrize(
    ("again", "owner"),
    [
        (address("gpu-9", "gpu-1.lan"), "vision"),
        (address("gpu-9", "10.0.0.9"), "vision"),  # the same host key
        (address("gpu-1", "gpu-1.lan", key=1), "vision"),  # the same address
        (address("gpu-1", "gpu-2.lan", key=1), None),
    ],
)
def test_a_host_that_is_removed_and_added_again_keeps_its_last_tenant(again, owner):
    owned_and_removed(**address("gpu-1", "gpu-1.lan"))

    added = add_node(viewer=ADMIN, now=NOW + timedelta(days=9), **again)

    assert owner_of(added) == (owner and (owner, NOW, 7))
    recorded = AuditEntry.objects.unscoped().filter(action="node.keep_tenant")
    assert [row.after["tenant"] for row in recorded] == [owner] * bool(owner)


def test_a_host_that_an_admin_has_reset_is_free_when_it_comes_again():
    owned_and_removed(**address("gpu-1", "gpu-1.lan"))
    added = add_node(viewer=ADMIN, now=NOW, **address("gpu-1", "gpu-1.lan"))
    reset_isolation(viewer=ADMIN, node_id=added.pk, reason="reinstalled", now=NOW)
    remove_node(viewer=ADMIN, node_id=added.pk, now=NOW)

    again = add_node(viewer=ADMIN, now=NOW, **address("gpu-1", "gpu-1.lan"))

    assert owner_of(again) is None


def test_a_node_that_gets_the_address_of_a_removed_host_gets_its_tenant():
    owned_and_removed(**address("gpu-1", "gpu-1.lan"))
    node = add_node(viewer=ADMIN, now=NOW, **address("gpu-2", "gpu-2.lan", key=1))
    assert owner_of(node) is None

    update_node(viewer=ADMIN, node_id=node.pk, now=NOW, host="gpu-1.lan")

    assert owner_of(node) == ("vision", NOW, 7)


def test_a_cloned_host_key_does_not_take_the_tenant_of_the_host_at_the_address():
    language = Tenant.objects.unscoped().get(name="language")
    clone = add_node(viewer=ADMIN, now=NOW, **address("gpu-2", "gpu-2.lan"))
    NodeTenancy.objects.create(node=clone, tenant=language, taken_at=NOW + timedelta(days=1))
    owned_and_removed(**address("gpu-1", "gpu-1.lan"))
    remove_node(viewer=ADMIN, node_id=clone.pk, now=NOW)

    added = add_node(viewer=ADMIN, now=NOW, **address("gpu-1", "gpu-1.lan"))

    assert owner_of(added) == ("vision", NOW, 7)


def test_only_admins_reset_and_only_with_a_reason():
    node = Node.objects.all()[0]

    with pytest.raises(ForbiddenError):
        reset_isolation(viewer=make_viewer("ada"), node_id=node.pk, reason="x", now=NOW)
    with pytest.raises(InvalidError):
        reset_isolation(viewer=ADMIN, node_id=node.pk, reason=" ", now=NOW)


def test_the_database_refuses_two_owners_of_a_node():
    node = Node.objects.all()[0]
    one, other = Tenant.objects.unscoped().order_by("id")[:2]
    NodeTenancy.objects.create(node=node, tenant=one, taken_at=NOW)

    with pytest.raises(IntegrityError), transaction.atomic():
        NodeTenancy.objects.create(node=node, tenant=other, taken_at=NOW)


def test_a_node_that_isolates_jobs_is_shared_and_its_members_rely_on_that():
    Node.objects.update(isolation_level="user")
    jobs = [submit("alice"), submit("bob", **BORROWING)]
    Node.objects.filter(name="node-2").update(held="cordoned", state="cordoned")

    run_round()

    assert [nodes_of(job) for job in jobs] == [{"node-1"}, {"node-1"}]
    levels = set(Member.objects.values_list("least_isolation", flat=True))
    assert levels == {"namespace"}
    assert not NodeTenancy.objects.unscoped().exists()


def test_attempts_that_run_when_the_level_drops_keep_others_away():
    Node.objects.update(isolation_level="namespace")
    Node.objects.filter(name="node-2").update(held="cordoned", state="cordoned")
    job = submit("alice", devices=1)
    start(job)
    Node.objects.update(isolation_level="none")
    other = submit("bob", devices=1, **BORROWING)

    run_round()

    assert reason_of(other) == "node-not-isolated"
    end(job)
    run_round(NOW + timedelta(seconds=10))
    assert nodes_of(other) == {"node-1"}


def test_a_start_that_fails_for_lack_of_isolation_excludes_the_node():
    Node.objects.update(isolation_level="namespace")
    job = submit("alice")
    run_round()
    (first,) = nodes_of(job)
    member = Member.objects.get(attempt__job=job)
    attempts.mark_preparing(member_ids=[member.pk], now=NOW)

    attempts.mark_prepare_failed(
        member_id=member.pk,
        failure=FailureClass.NODE,
        code="isolation-not-available",
        message="no level of isolation is available",
        now=NOW,
    )
    run_round(NOW + timedelta(minutes=10))

    newest = Attempt.objects.filter(job=job).order_by("-number")[0]
    assert JobState(Job.objects.unscoped().get(pk=job.pk).state) is JobState.ADMITTED
    assert {member.node.name for member in newest.members.all()} == {"node-1", "node-2"} - {first}
