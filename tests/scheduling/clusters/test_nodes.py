"""Nodes as an admin handles them."""

import base64
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from scheduling.clusters.models import Device, Node, Topology
from scheduling.clusters.services.node_contact import contact_back, contact_lost
from scheduling.clusters.services.nodes import (
    add_node,
    cordon_node,
    declare_node_dead,
    drain_node,
    fingerprint_of,
    finish_drains,
    remove_node,
    set_device_health,
    uncordon_node,
    update_node,
)
from scheduling.clusters.services.topology import DevicesInUseError, DoesNotFitError
from scheduling.core.lifecycle import JobState
from scheduling.runs.models import EvictionTally, Lease, Member
from scheduling.runs.services import attempts
from tenants.errors import (
    ConflictError,
    DuplicateError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    StaleEditError,
)
from tenants.models import AuditEntry
from tessera import protocol
from tests.factories.nodes import FINGERPRINT, HOST_KEY, HOST_KEY_BLOB, NODE_FIELDS
from tests.factories.scheduling import ADMIN, NOW, make_two_tenants, run_round, start, submit
from tests.factories.tenants import make_viewer
from tests.support.writes import writes_to

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def clusters():
    return make_two_tenants()


def node(name="node-1"):
    return Node.objects.get(name=name, removed_at=None)


def gone(job):
    for member in Member.objects.filter(attempt__job=job, attempt__ended_at=None):
        record = protocol.ExitRecord(
            cause=protocol.CAUSE_STOPPED, failure="", at=NOW.timestamp(), code=0
        )
        attempts.mark_exited(member_id=member.pk, record=record, now=NOW)


def test_a_node_is_added_down_with_its_key_and_the_record_of_it():
    row = add_node(viewer=make_viewer("root"), now=NOW, **NODE_FIELDS)

    assert (row.state, row.contact, row.labels) == ("down", "down", {"rack": "r1"})
    assert row.host_key_fingerprint == FINGERPRINT
    entry = AuditEntry.objects.unscoped().get(action="node.add")
    assert entry.actor_name == "root"
    assert entry.after["host"] == "gpu-1.example.org"
    assert "host_key" not in entry.after


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("name", "a/b"),
        ("name", "-x"),
        ("name", "x" * 64),
        ("name", "$(reboot)"),
        ("name", 'a"b\n'),
        ("name", 7),
        ("host", ""),
        ("host", "-oProxyCommand=reboot"),
        ("host", "a b"),
        ("host", "fe80::1%eth0"),
        ("host", "x" * 256),
        ("host", None),
        ("port", 0),
        ("port", 65536),
        ("port", "22"),
        ("port", True),
        ("user", ""),
        ("user", "-l"),
        ("user", "a b"),
        ("user", "root;reboot"),
        ("labels", ["rack"]),
        ("labels.rack", {"rack": 1}),
        ("labels.a b", {"a b": "x"}),
        ("labels", {str(n): "x" for n in range(33)}),
        ("labels.rack", {"rack": "a\nb"}),
        ("host_key", "ssh-ed25519"),
        ("host_key", "ssh-ed25519 %%%"),
        ("host_key", f"{HOST_KEY}\n{HOST_KEY}"),
        ("host_key", f"ssh-rsa {base64.b64encode(HOST_KEY_BLOB).decode()}"),
        ("host_key", None),
        ("host_key_fingerprint", "SHA256:wrong"),
        ("host_key_fingerprint", ""),
    ],
)
def test_a_wrong_value_is_refused_by_name_and_nothing_is_stored(field, value):
    argument = field.partition(".")[0].replace("host_key_fingerprint", "fingerprint")
    before = Node.objects.count()

    with pytest.raises(InvalidError) as caught:
        add_node(viewer=ADMIN, now=NOW, **{**NODE_FIELDS, argument: value})

    assert caught.value.field == field
    assert caught.value.remedy
    assert Node.objects.count() == before


@pytest.mark.parametrize("host", ["10.0.0.1", "fd00::1", "gpu-1", "gpu_1.example.org."])
def test_names_and_addresses_of_machines_are_taken(host):
    assert add_node(viewer=ADMIN, now=NOW, **{**NODE_FIELDS, "host": host}).host == host


def test_all_wrong_values_are_named_at_once():
    with pytest.raises(InvalidError) as caught:
        add_node(viewer=ADMIN, now=NOW, **{**NODE_FIELDS, "name": "", "port": 0, "user": ""})

    assert {error.field for error in caught.value.errors} == {"name", "port", "user"}


def test_a_comment_behind_the_key_does_not_change_its_fingerprint():
    assert fingerprint_of(f"  {HOST_KEY} root@gpu-1 \n") == FINGERPRINT


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"name": "node-1"}, "name"), ({"host": "127.0.0.1", "port": 2201}, "host")],
)
def test_a_taken_name_or_address_is_refused(changes, field):
    with pytest.raises(DuplicateError) as caught:
        add_node(viewer=ADMIN, now=NOW, **{**NODE_FIELDS, **changes})

    assert caught.value.field == field


def test_an_imported_node_gets_its_address_by_being_added():
    Node.objects.filter(name="node-1").update(host="")

    row = add_node(viewer=ADMIN, now=NOW, **{**NODE_FIELDS, "name": "node-1"})

    assert (row.pk, row.host) == (node().pk, "gpu-1.example.org")


@pytest.mark.parametrize("name", ["alice", "ada", "carol"])
def test_only_cluster_admins_touch_nodes(name):
    viewer, row = make_viewer(name), node()
    acts = [
        lambda: add_node(viewer=viewer, now=NOW, **NODE_FIELDS),
        lambda: update_node(viewer=viewer, node_id=row.pk, now=NOW, port=1),
        lambda: remove_node(viewer=viewer, node_id=row.pk, now=NOW),
        lambda: cordon_node(viewer=viewer, node_id=row.pk, reason="x", now=NOW),
        lambda: uncordon_node(viewer=viewer, node_id=row.pk, now=NOW),
        lambda: drain_node(viewer=viewer, node_id=row.pk, reason="x", now=NOW),
        lambda: declare_node_dead(viewer=viewer, node_id=row.pk, reason="x", now=NOW),
        lambda: set_device_health(
            viewer=viewer, node_id=row.pk, index=0, healthy=False, reason="x", now=NOW
        ),
    ]

    for act in acts:
        with pytest.raises(ForbiddenError):
            act()
    assert AuditEntry.objects.unscoped().filter(object_type__in=["node", "device"]).count() == 0


def test_an_edit_changes_what_was_given_and_counts_the_version():
    row = update_node(viewer=ADMIN, node_id=node().pk, now=NOW, port=2022, expected_version=1)

    assert (row.port, row.host, row.version) == (2022, "127.0.0.1", 2)
    entry = AuditEntry.objects.unscoped().get(action="node.update")
    assert (entry.before, entry.after) == ({"port": 2201}, {"port": 2022})


def test_an_edit_of_an_old_version_is_refused():
    update_node(viewer=ADMIN, node_id=node().pk, now=NOW, port=2022)

    with pytest.raises(StaleEditError):
        update_node(viewer=ADMIN, node_id=node().pk, now=NOW, port=2023, expected_version=1)

    assert node().port == 2022


def test_a_key_is_changed_only_together_with_its_fingerprint():
    with pytest.raises(InvalidError):
        update_node(viewer=ADMIN, node_id=node().pk, now=NOW, host_key=HOST_KEY)
    with pytest.raises(InvalidError):
        update_node(viewer=ADMIN, node_id=node().pk, now=NOW, fingerprint=FINGERPRINT)

    row = update_node(
        viewer=ADMIN, node_id=node().pk, now=NOW, host_key=HOST_KEY, fingerprint=FINGERPRINT
    )

    assert row.host_key == HOST_KEY


def test_an_unknown_node_is_not_found():
    with pytest.raises(NotFoundError):
        cordon_node(viewer=ADMIN, node_id=10**6, reason="x", now=NOW)


def test_a_cordoned_node_keeps_its_jobs_and_gets_no_new_ones():
    running = submit(devices=8)
    start(running)
    home = running.attempts.get().members.get().node

    row = cordon_node(viewer=ADMIN, node_id=home.pk, reason="new driver", now=NOW)

    assert (row.state, row.state_reason) == ("cordoned", "new driver")
    running.refresh_from_db()
    assert running.state == JobState.RUNNING
    assert uncordon_node(viewer=ADMIN, node_id=home.pk, now=NOW).state == "ready"


@pytest.mark.parametrize("act", [cordon_node, drain_node, declare_node_dead])
@pytest.mark.parametrize("reason", ["", "  ", "x" * 501, "a\x00b", None])
def test_a_reason_must_be_given(act, reason):
    Node.objects.update(contact="suspect", state="suspect")

    with pytest.raises(InvalidError) as caught:
        act(viewer=ADMIN, node_id=node().pk, reason=reason, now=NOW)

    assert caught.value.field == "reason"


def test_an_empty_node_is_drained_at_once():
    row = drain_node(viewer=ADMIN, node_id=node().pk, reason="repair", now=NOW)

    assert (row.state, row.held, row.state_reason) == ("cordoned", "cordoned", "repair")


def test_draining_asks_jobs_to_leave_and_ends_when_they_have():
    job, other = submit(devices=8), submit("bob", devices=8)
    start(job, other)
    home = job.attempts.get().members.get().node

    row = drain_node(viewer=ADMIN, node_id=home.pk, reason="repair", now=NOW)
    job.refresh_from_db()
    other.refresh_from_db()
    assert (row.state, job.state, other.state) == ("draining", "preempting", "running")
    assert finish_drains(now=NOW) == 0
    gone(job)

    assert finish_drains(now=NOW) == 1
    job.refresh_from_db()
    assert (node(home.name).state, job.state) == ("cordoned", "queued")
    assert AuditEntry.objects.unscoped().filter(action="node.drained").count() == 1
    start(job, at=NOW + timedelta(minutes=1))
    assert job.attempts.get(ended_at=None).members.get().node_id != home.pk


def test_what_a_round_placed_while_the_drain_began_is_asked_to_leave_too():
    job = submit(devices=8)
    run_round()
    home = Member.objects.get(attempt__job=job).node
    Node.objects.filter(pk=home.pk).update(held="draining", state="draining")

    finish_drains(now=NOW)

    job.refresh_from_db()
    assert job.state in {JobState.PREEMPTING, JobState.QUEUED}


def test_the_jobs_that_leave_before_they_began_are_counted_once_and_last():
    jobs = submit(devices=4), submit(devices=4)
    run_round()
    (home,) = {member.node_id for member in Member.objects.filter(attempt__job__in=jobs)}

    with CaptureQueriesContext(connection) as asked:
        row = drain_node(viewer=ADMIN, node_id=home, reason="repair", now=NOW)

    writes = writes_to(asked, EvictionTally)
    assert row.state == "cordoned"
    assert writes == [*[None] * (len(writes) - 1), EvictionTally]
    assert EvictionTally.objects.values_list("reason", "count").get() == ("preempted", 2)


def test_a_node_that_answers_is_not_dead():
    with pytest.raises(ConflictError) as caught:
        declare_node_dead(viewer=ADMIN, node_id=node().pk, reason="gone", now=NOW)

    assert caught.value.field == "contact"


def test_the_jobs_of_a_dead_node_run_elsewhere_and_it_stays_out_when_it_is_back():
    job = submit(devices=8)
    start(job)
    home = job.attempts.get().members.get().node
    contact_lost(node_id=home.pk, reason="no answer", now=NOW)

    row = declare_node_dead(viewer=ADMIN, node_id=home.pk, reason="burnt", now=NOW)

    job.refresh_from_db()
    assert (row.state, row.declared_dead_at, job.state) == ("down", NOW, "queued")
    assert Lease.objects.filter(released_at=None).count() == 0
    contact_back(node_id=home.pk, boot_id="b2", now=NOW)
    assert node(home.name).state == "cordoned"
    assert uncordon_node(viewer=ADMIN, node_id=home.pk, now=NOW).declared_dead_at is None


def test_the_jobs_of_a_dead_node_are_counted_once_and_last():
    start(submit(devices=4), submit(devices=4))
    (home,) = set(Member.objects.values_list("node", flat=True))
    contact_lost(node_id=home, reason="no answer", now=NOW)

    with CaptureQueriesContext(connection) as asked:
        declare_node_dead(viewer=ADMIN, node_id=home, reason="burnt", now=NOW)

    writes = writes_to(asked, EvictionTally)
    assert writes == [*[None] * (len(writes) - 1), EvictionTally]
    assert EvictionTally.objects.values_list("reason", "count").get() == ("node", 2)


def test_a_job_does_not_tell_its_owner_what_the_line_to_its_node_said():
    job = submit(devices=8)
    start(job)
    home = job.attempts.get().members.get().node

    contact_lost(node_id=home.pk, reason="10.1.2.3:22: no route", now=NOW)

    assert node(home.name).contact_reason == "10.1.2.3:22: no route"
    event = job.events.order_by("-id")[0]
    assert event.state == JobState.SUSPECT
    assert event.text == "its node has not responded for a while"


def test_a_device_is_taken_out_of_use_and_back():
    set_device_health(
        viewer=ADMIN, node_id=node().pk, index=3, healthy=False, reason="ECC", now=NOW
    )
    device = Device.objects.get(node=node(), index=3)
    assert (device.healthy, device.health_reason) == (False, "ECC")

    set_device_health(viewer=ADMIN, node_id=node().pk, index=3, healthy=True, now=NOW)

    device.refresh_from_db()
    assert (device.healthy, device.health_reason) == (True, "")
    with pytest.raises(NotFoundError):
        set_device_health(viewer=ADMIN, node_id=node().pk, index=99, healthy=True, now=NOW)


def test_a_removed_node_leaves_the_topology_and_its_name_is_free_again():
    row = node("node-3")

    remove_node(viewer=ADMIN, node_id=row.pk, now=NOW)

    row.refresh_from_db()
    assert (row.removed_at, row.host) == (NOW, "")
    assert [cell["address"] for cell in Topology.objects.get(version=2).spec["physical"]] == [
        "node-1",
        "node-2",
    ]
    assert Device.objects.filter(node=row, retired_at=None).count() == 0
    assert add_node(viewer=ADMIN, now=NOW, **{**NODE_FIELDS, "name": "node-3"}).pk != row.pk


def test_a_node_with_jobs_or_whose_cells_are_promised_is_not_removed():
    job = submit(devices=8)
    start(job)
    home = job.attempts.get().members.get().node
    with pytest.raises(ConflictError, match=f"1 job is still on {home.name}"):
        remove_node(viewer=ADMIN, node_id=home.pk, now=NOW)
    others = list(Node.objects.exclude(pk=home.pk))
    remove_node(viewer=ADMIN, node_id=others[0].pk, now=NOW)

    with pytest.raises(DoesNotFitError) as caught:
        remove_node(viewer=ADMIN, node_id=others[1].pk, now=NOW)

    assert "a-node needs 2, has 1" in str(caught.value)
    assert Topology.objects.count() == 2


def test_a_node_whose_devices_are_leased_is_not_removed_even_without_open_members():
    job = submit(devices=8)
    start(job)
    home = job.attempts.get().members.get().node
    Member.objects.update(step="exited")

    with pytest.raises(DevicesInUseError):
        remove_node(viewer=ADMIN, node_id=home.pk, now=NOW)
