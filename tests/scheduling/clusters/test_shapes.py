"""The dry run of a shape, what tenants have used, and how many cells can still be promised."""

from datetime import timedelta

import pytest

from scheduling.clusters.models import Device, VcLimit, VcQuota
from scheduling.clusters.queries.shapes import try_shape
from scheduling.clusters.queries.virtual_clusters import virtual_cluster_detail
from scheduling.usage.queries.device_hours import limits_of_members, use_by_person, use_by_tenant
from tenants.errors import ForbiddenError, NotFoundError
from tenants.models import Membership
from tenants.viewers import Viewer
from tests.factories.cluster import NOW, make_cluster, make_job, make_virtual_cluster
from tests.factories.running import ran, run_attempt
from tests.factories.tenants import make_member, make_tenant, make_user, make_viewer

pytestmark = pytest.mark.django_db

ADMIN = Viewer.system("tests")
NODE, SOCKET = ("a-node", "a-node"), ("a-node", "a-socket")


@pytest.fixture
def nodes():
    found = make_cluster(3)
    make_virtual_cluster("vision-a", cells=1)
    return found


def left(answer):
    return {row.level: row.left for row in answer.rows}


def test_a_new_shape_is_tried_beside_all_promises_and_nothing_is_written(nodes):
    answer = try_shape(ADMIN, {NODE: 1, SOCKET: 1})

    assert answer.fits
    assert answer.devices == 12
    assert left(answer) == {"node": 0, "socket": 1, "pcie": 2, "device": 4}
    assert {cell.vc for cell in answer.assignment} == {"vision-a", "(new)"}
    assert VcQuota.objects.count() == 1


def test_the_own_promise_is_replaced_and_not_added(nodes):
    assert try_shape(ADMIN, {NODE: 3}, name="vision-a").fits
    assert not try_shape(ADMIN, {NODE: 3}).fits


def test_what_is_too_much_is_named_with_the_most_that_fits(nodes):
    answer = try_shape(ADMIN, {NODE: 2, SOCKET: 1})

    assert not answer.fits
    assert {(over.level, over.asked, over.most) for over in answer.too_many} == {
        ("node", 2, 1),
        ("socket", 1, 0),
    }
    assert "needs 1, has 0" in answer.witness
    assert answer.assignment == ()


def test_a_cell_that_smaller_promises_need_is_not_left(nodes):
    language = make_tenant("language")
    other = make_virtual_cluster("language-a", language, cells=0)
    VcQuota.objects.create(virtual_cluster=other, chain="a-node", level="a-socket", count=3)

    detail = virtual_cluster_detail(ADMIN, "vision-a")

    shape = {row.level: row.left for row in detail.shape}
    assert shape == {"node": 0, "socket": 1, "pcie": 2, "device": 4}
    assert try_shape(ADMIN, {NODE: 1}, name="vision-a").fits
    assert not try_shape(ADMIN, {NODE: 2}, name="vision-a").fits


def test_levels_that_do_not_exist_are_left_out(nodes):
    answer = try_shape(ADMIN, {("b", "b"): 5, ("a-node", "nope"): 1, NODE: 1})

    assert answer.fits
    assert answer.devices == 8


def test_only_those_who_edit_shares_may_try(nodes):
    with pytest.raises(ForbiddenError):
        try_shape(make_viewer("alice"), {NODE: 1})


def test_use_counts_live_and_past_leases_of_visible_tenants_only(nodes):
    alice = make_viewer("alice")
    past, live = make_job("alice"), make_job("alice")
    run_attempt(past, nodes[0], now=NOW, devices=(1,), ended=True)
    run_attempt(live, nodes[0], now=NOW, devices=(0,))
    ran(past, NOW - timedelta(hours=2), NOW - timedelta(hours=1))
    ran(live, NOW - timedelta(hours=2))
    Device.objects.filter(node=nodes[0], index=1).update(is_gpu=True)
    tenant_id = next(iter(alice.roles))

    mine = use_by_tenant(alice, now=NOW)[tenant_id]
    people = use_by_person(alice, tenant_id, now=NOW)
    make_member(make_tenant("speech"), make_user("sam"))

    assert (mine.hours.gpu, mine.hours.slot, mine.devices) == (1.0, 2.0, 1)
    assert alice.user_id is not None
    assert people[alice.user_id] == mine
    assert use_by_tenant(make_viewer("sam"), now=NOW) == {}


def test_limits_are_told_to_members_of_the_tenant_only(nodes):
    alice = make_viewer("alice")
    tenant_id = next(iter(alice.roles))
    detail = virtual_cluster_detail(ADMIN, "vision-a")
    member = Membership.objects.unscoped().get(user__username="alice")
    VcLimit.objects.create(membership=member, virtual_cluster_id=detail.use.id)
    make_member(make_tenant("speech"), make_user("sam"))

    assert limits_of_members(alice, tenant_id) == {member.pk: ("vision-a",)}
    with pytest.raises(NotFoundError):
        limits_of_members(make_viewer("sam"), tenant_id)
