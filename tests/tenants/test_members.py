"""Who belongs to a tenant."""

import pytest

from tenants.errors import (
    DuplicateError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    StaleEditError,
)
from tenants.models import AuditEntry, Membership, Tenant, User
from tenants.roles import Role, Scope
from tenants.selectors import member_for, members_for, viewer_of
from tenants.services import (
    LastLeadError,
    add_member,
    archive_tenant,
    remove_member,
    update_member,
)
from tests.factories.tenants import (
    NOW,
    SYSTEM,
    make_member,
    make_tenant,
    make_token,
    make_user,
    make_viewer,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def vision():
    return make_tenant("vision", alice=Role.LEAD, bob=Role.MEMBER)


def member(tenant, username):
    return tenant.memberships.get(user__username=username)


def last_entry():
    return AuditEntry.objects.unscoped().first()


def test_a_lead_lets_a_person_in_and_it_is_recorded(vision):
    make_user("Carol")

    added = add_member(
        viewer=make_viewer("alice"), tenant_id=vision.pk, username="carol", max_devices=4
    )

    assert (added.user.username, added.role, added.max_devices) == ("Carol", "member", 4)
    entry = last_entry()
    assert (entry.action, entry.actor_name, entry.tenant) == ("member.add", "alice", vision)
    assert entry.after == {"user": "Carol", "role": "member", "max_devices": 4}


def test_all_that_is_wrong_with_a_new_member_is_reported_at_once(vision):
    with pytest.raises(InvalidError) as refusal:
        add_member(
            viewer=SYSTEM, tenant_id=vision.pk, username="nobody", role="king", max_devices=0
        )

    assert {error.field for error in refusal.value.errors} == {"username", "role", "max_devices"}
    assert all(error.remedy for error in refusal.value.errors)


def test_nobody_is_let_in_twice(vision):
    with pytest.raises(DuplicateError):
        add_member(viewer=SYSTEM, tenant_id=vision.pk, username="BOB")

    assert vision.memberships.count() == 2


def test_a_person_kept_out_of_the_cluster_cannot_be_let_in(vision):
    User.objects.filter(pk=make_user("carol").pk).update(is_active=False)

    with pytest.raises(InvalidError):
        add_member(viewer=SYSTEM, tenant_id=vision.pk, username="carol")


def test_a_member_manages_nobody_and_a_stranger_learns_nothing(vision):
    make_user("carol")
    bob = member(vision, "bob")

    with pytest.raises(ForbiddenError):
        update_member(viewer=make_viewer("bob"), membership_id=bob.pk, role="lead")
    with pytest.raises(ForbiddenError):
        update_member(viewer=make_viewer("bob"), membership_id=bob.pk, max_devices=None)
    with pytest.raises(NotFoundError):
        update_member(viewer=make_viewer("carol"), membership_id=bob.pk, role="lead")
    with pytest.raises(NotFoundError):
        add_member(viewer=make_viewer("carol"), tenant_id=vision.pk, username="carol")
    with pytest.raises(NotFoundError):
        member_for(make_viewer("carol"), bob.pk)


def test_a_token_without_the_scope_manages_nobody(vision):
    alice = User.objects.get(username="alice")
    token = make_token(alice, Scope.JOBS_WRITE).token

    with pytest.raises(ForbiddenError, match="not allowed"):
        add_member(viewer=viewer_of(alice, token), tenant_id=vision.pk, username="x")
    with pytest.raises(ForbiddenError):
        remove_member(viewer=viewer_of(alice, token), membership_id=member(vision, "alice").pk)


def test_a_lead_of_one_tenant_is_nobody_in_another(vision):
    language = make_tenant("language", carol=Role.LEAD)

    with pytest.raises(NotFoundError):
        remove_member(viewer=make_viewer("carol"), membership_id=member(vision, "bob").pk)

    assert members_for(make_viewer("carol")).get().tenant == language


def test_role_and_cap_change_in_one_edit(vision):
    bob = member(vision, "bob")

    after = update_member(
        viewer=make_viewer("alice"),
        membership_id=bob.pk,
        role="lead",
        max_devices=8,
        expected_version=1,
    )

    assert (after.role, after.max_devices, after.version) == ("lead", 8, 2)
    assert last_entry().before == {"role": "member", "max_devices": None}
    assert last_entry().after == {"role": "lead", "max_devices": 8}


def test_a_cap_can_be_taken_away_and_left_alone(vision):
    bob = member(vision, "bob")
    update_member(viewer=SYSTEM, membership_id=bob.pk, max_devices=2)

    assert update_member(viewer=SYSTEM, membership_id=bob.pk, role="viewer").max_devices == 2
    assert update_member(viewer=SYSTEM, membership_id=bob.pk, max_devices=None).role == "viewer"
    assert member(vision, "bob").max_devices is None


@pytest.mark.parametrize("cap", [0, -1, 1_000_001])
def test_a_cap_is_at_least_one_device(vision, cap):
    with pytest.raises(InvalidError) as refusal:
        update_member(viewer=SYSTEM, membership_id=member(vision, "bob").pk, max_devices=cap)

    assert (refusal.value.field, refusal.value.value) == ("max_devices", cap)


def test_an_edit_of_an_old_reading_changes_nothing(vision):
    bob = member(vision, "bob")
    update_member(viewer=SYSTEM, membership_id=bob.pk, max_devices=2)
    count = AuditEntry.objects.unscoped().count()

    with pytest.raises(StaleEditError):
        update_member(viewer=SYSTEM, membership_id=bob.pk, max_devices=3, expected_version=1)
    with pytest.raises(StaleEditError):
        remove_member(viewer=SYSTEM, membership_id=bob.pk, expected_version=1)

    assert member(vision, "bob").max_devices == 2
    assert AuditEntry.objects.unscoped().count() == count


def test_the_last_lead_stays_unless_an_admin_says_otherwise(vision):
    alice = member(vision, "alice")
    viewer = make_viewer("alice")

    with pytest.raises(LastLeadError):
        update_member(viewer=viewer, membership_id=alice.pk, role="member")
    with pytest.raises(LastLeadError):
        remove_member(viewer=viewer, membership_id=alice.pk)
    make_member(vision, make_user("carol"), Role.LEAD)
    update_member(viewer=viewer, membership_id=alice.pk, role="member")
    update_member(viewer=SYSTEM, membership_id=member(vision, "carol").pk, role="member")

    assert not vision.memberships.filter(role="lead").exists()


def test_a_lead_who_is_kept_out_does_not_count_as_one(vision):
    carol = make_user("carol")
    make_member(vision, carol, Role.LEAD)
    User.objects.filter(pk=carol.pk).update(is_active=False)

    with pytest.raises(LastLeadError):
        remove_member(viewer=make_viewer("alice"), membership_id=member(vision, "alice").pk)


def test_a_person_may_leave(vision):
    remove_member(viewer=make_viewer("bob"), membership_id=member(vision, "bob").pk)

    assert not Membership.objects.unscoped().filter(user__username="bob").exists()
    assert last_entry().before == {"user": "bob", "role": "member", "max_devices": None}


def test_a_member_may_not_send_another_away(vision):
    with pytest.raises(ForbiddenError):
        remove_member(viewer=make_viewer("bob"), membership_id=member(vision, "alice").pk)


def test_an_archived_tenant_takes_no_members(vision):
    archive_tenant(viewer=SYSTEM, tenant_id=vision.pk, now=NOW)
    make_user("carol")

    with pytest.raises(ForbiddenError, match="not allowed"):
        add_member(viewer=make_viewer("alice"), tenant_id=vision.pk, username="carol")


def test_each_edit_of_the_list_raises_its_version(vision):
    before = Tenant.objects.unscoped().get().members_version

    update_member(viewer=SYSTEM, membership_id=member(vision, "bob").pk, max_devices=2)
    update_member(viewer=SYSTEM, membership_id=member(vision, "bob").pk, max_devices=2)
    remove_member(viewer=SYSTEM, membership_id=member(vision, "bob").pk)

    assert Tenant.objects.unscoped().get().members_version == before + 2


def test_a_list_of_members_takes_one_query_and_brings_no_passwords(
    vision, django_assert_num_queries
):
    viewer = make_viewer("alice")

    with django_assert_num_queries(1):
        rows = [(row.tenant.name, row.user.username) for row in members_for(viewer)]

    assert rows == [("vision", "alice"), ("vision", "bob")]
    assert "password" in members_for(viewer)[0].user.get_deferred_fields()
