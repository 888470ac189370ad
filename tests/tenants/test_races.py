"""Two people at once, on a database on which they really meet."""

import pytest

from tenants.errors import DomainError, DuplicateError, StaleEditError
from tenants.models import AuditEntry, Tenant, User
from tenants.roles import Role
from tenants.services import (
    add_member,
    authenticate_token,
    create_tenant,
    create_user,
    revoke_cluster_admin,
    update_member,
    update_tenant,
)
from tests.factories.tenants import (
    NOW,
    SYSTEM,
    make_tenant,
    make_token,
    make_user,
    make_viewer,
)
from tests.support.databases import at_once

pytestmark = pytest.mark.usefixtures("real_database")


def failures(outcomes):
    return [outcome for outcome in outcomes if isinstance(outcome, Exception)]


def test_of_two_admins_who_edit_one_tenant_exactly_one_wins():
    vision = make_tenant("vision")

    def edit(note):
        return lambda: update_tenant(
            viewer=SYSTEM, tenant_id=vision.pk, note=note, expected_version=1
        )

    outcomes = at_once(edit("one"), edit("two"))

    (lost,) = failures(outcomes)
    (won,) = [outcome for outcome in outcomes if isinstance(outcome, Tenant)]
    assert isinstance(lost, StaleEditError)
    assert Tenant.objects.unscoped().get().note == won.note
    assert AuditEntry.objects.unscoped().filter(action="tenant.update").count() == 1


def test_two_leads_who_demote_each_other_leave_one():
    vision = make_tenant("vision", alice=Role.LEAD, bob=Role.LEAD)
    keys = dict(vision.memberships.values_list("user__username", "pk"))
    viewers = {name: make_viewer(name) for name in keys}

    def demote(actor, other):
        return lambda: update_member(
            viewer=viewers[actor], membership_id=keys[other], role=Role.MEMBER
        )

    outcomes = at_once(demote("alice", "bob"), demote("bob", "alice"))

    (lost,) = failures(outcomes)
    assert isinstance(lost, DomainError)
    assert vision.memberships.filter(role=Role.LEAD).count() == 1


def test_two_admins_who_revoke_each_other_leave_one():
    ids = {name: make_user(name, is_cluster_admin=True).pk for name in ("root", "toor")}
    viewers = {name: make_viewer(name) for name in ids}

    outcomes = at_once(
        lambda: revoke_cluster_admin(viewer=viewers["root"], user_id=ids["toor"]),
        lambda: revoke_cluster_admin(viewer=viewers["toor"], user_id=ids["root"]),
    )

    (lost,) = failures(outcomes)
    assert isinstance(lost, DomainError)
    assert User.objects.filter(is_superuser=True).count() == 1


def test_tenants_made_at_once_get_positions_of_their_own():
    outcomes = at_once(
        *(lambda name=name: create_tenant(viewer=SYSTEM, name=name) for name in "abcd")
    )

    assert failures(outcomes) == []
    assert sorted(tenant.position for tenant in outcomes) == [1, 2, 3, 4]


def test_one_name_asked_for_twice_at_once_is_given_once():
    vision = make_tenant("vision")
    make_user("carol")

    for act in (
        lambda: create_tenant(viewer=SYSTEM, name="language"),
        lambda: create_user(viewer=SYSTEM, username="dave"),
        lambda: add_member(viewer=SYSTEM, tenant_id=vision.pk, username="carol"),
    ):
        (lost,) = failures(at_once(act, act))
        assert isinstance(lost, DuplicateError)


def test_a_key_used_many_times_at_once_works_every_time():
    make_tenant("vision", alice=Role.MEMBER)
    issued = make_token(User.objects.get(username="alice"))

    outcomes = at_once(*[lambda: authenticate_token(issued.key, NOW)] * 4)

    assert [user.username for user, _ in outcomes] == ["alice"] * 4
