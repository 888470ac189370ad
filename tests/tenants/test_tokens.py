"""Keys for scripts."""

import hashlib
import re
from datetime import timedelta

import pytest

from tenants.errors import ForbiddenError, InvalidError, NotFoundError
from tenants.models import ApiToken, AuditEntry, User
from tenants.roles import Permission, Role, Scope
from tenants.selectors import tokens_for, tokens_in_tenant, viewer_of
from tenants.services import (
    authenticate_token,
    issue_token,
    revoke_token,
    rotate_token,
    set_user_active,
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

MINUTE = timedelta(minutes=1)


@pytest.fixture
def vision():
    return make_tenant("vision", alice=Role.MEMBER)


@pytest.fixture
def alice(vision):
    return User.objects.get(username="alice")


def test_a_key_opens_the_door_for_its_owner(alice):
    issued = make_token(alice)

    found = authenticate_token(issued.key, NOW)

    assert found == (alice, issued.token)


def test_a_key_has_its_form_and_enough_chance_in_it(alice):
    first, second = make_token(alice), make_token(alice)

    assert re.fullmatch(r"tsr_[a-z0-9]{8}_[0-9a-f]{64}", first.key)
    assert first.key.split("_")[1] == first.token.prefix
    assert first.key[13:] != second.key[13:]


def test_the_key_is_stored_nowhere_and_printed_by_nothing(alice):
    issued = make_token(alice)
    secret = issued.key.split("_")[2]

    stored = str(ApiToken.objects.values().get()) + str(
        list(AuditEntry.objects.unscoped().values())
    )

    assert secret not in stored
    assert issued.token.digest == hashlib.sha256(issued.key.encode()).hexdigest()
    assert secret not in repr(issued)
    assert not hasattr(tokens_for(viewer_of(alice))[0], "digest")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda key: "",
        lambda key: "tsr_",
        lambda key: key[:-1],
        lambda key: key + "0",
        lambda key: key + "\n",
        lambda key: key[:-1] + ("0" if key[-1] != "0" else "1"),
        lambda key: key.upper(),
        lambda key: "tsr_aaaaaaaa_" + key.split("_")[2],
        lambda key: "\x00" * 77,
        lambda key: "ä" * 100_000,
        lambda key: f"tsr_{key.split('_')[1]}_{hashlib.sha256(key.encode()).hexdigest()}",
    ],
)
def test_anything_but_the_key_is_refused(alice, spoil):
    issued = make_token(alice)

    assert authenticate_token(spoil(issued.key), NOW) is None


def test_a_key_ends_at_the_moment_it_expires(alice):
    issued = make_token(alice, expires_in=timedelta(days=1))
    end = NOW + timedelta(days=1)

    assert authenticate_token(issued.key, end - timedelta(seconds=1)) is not None
    assert authenticate_token(issued.key, end) is None


def test_a_revoked_key_is_dead_at_once(alice):
    issued = make_token(alice)

    revoke_token(viewer=viewer_of(alice), token_id=issued.token.pk, now=NOW)

    assert authenticate_token(issued.key, NOW) is None


def test_the_key_of_a_person_kept_out_is_refused(alice):
    issued = make_token(alice)

    set_user_active(viewer=SYSTEM, user_id=alice.pk, is_active=False)

    assert authenticate_token(issued.key, NOW) is None


def test_the_use_of_a_key_is_written_at_most_once_a_minute(alice, django_assert_num_queries):
    issued = make_token(alice)
    authenticate_token(issued.key, NOW)

    with django_assert_num_queries(1):
        authenticate_token(issued.key, NOW + MINUTE / 2)
    assert ApiToken.objects.get().last_used_at == NOW

    authenticate_token(issued.key, NOW + MINUTE)
    assert ApiToken.objects.get().last_used_at == NOW + MINUTE


def test_a_member_cannot_hand_out_what_leads_and_admins_may(alice):
    with pytest.raises(InvalidError) as refusal:
        make_token(alice, Scope.JOBS_WRITE, Scope.TENANT_ADMIN, Scope.NODES_ADMIN)

    assert [error.value for error in refusal.value.errors] == ["tenant:admin", "nodes:admin"]
    assert {error.field for error in refusal.value.errors} == {"scopes"}
    assert not ApiToken.objects.exists()


def test_a_scope_counts_in_the_tenant_the_token_is_bound_to(alice):
    language = make_tenant("language")
    make_member(language, alice, Role.LEAD)
    vision = alice.memberships.unscoped().get(tenant__name="vision").tenant

    make_token(alice, Scope.TENANT_ADMIN, tenant=language)
    with pytest.raises(InvalidError):
        make_token(alice, Scope.TENANT_ADMIN, tenant=vision)


def test_all_that_is_wrong_with_a_request_is_reported_at_once(alice):
    with pytest.raises(InvalidError) as refusal:
        issue_token(
            viewer=viewer_of(alice),
            name=" ",
            scopes=["jobs:eat"],
            tenant_id=10_000,
            expires_in=timedelta(0),
            now=NOW,
        )

    assert [error.field for error in refusal.value.errors] == [
        "name",
        "expires_in_days",
        "tenant",
        "scopes",
    ]


def test_a_token_needs_a_scope(alice):
    with pytest.raises(InvalidError, match="at least one scope"):
        issue_token(viewer=viewer_of(alice), name="x", scopes=[], now=NOW)


def test_a_token_makes_no_tokens(alice):
    issued = make_token(alice)

    with pytest.raises(ForbiddenError):
        issue_token(viewer=viewer_of(alice, issued.token), name="x", scopes=["jobs:read"], now=NOW)


def test_the_system_owns_no_tokens():
    with pytest.raises(ForbiddenError):
        issue_token(viewer=SYSTEM, name="x", scopes=["jobs:read"], now=NOW)


def test_a_token_loses_what_its_owner_loses(alice, vision):
    issued = make_token(alice, Scope.JOBS_WRITE)
    member = vision.memberships.get(user=alice)

    update_member(viewer=SYSTEM, membership_id=member.pk, role=Role.VIEWER)

    viewer = viewer_of(alice, issued.token)
    assert not viewer.can(Permission.SUBMIT_JOBS, vision.pk)
    assert viewer.can(Permission.VIEW_JOBS, vision.pk)


def test_a_scope_of_a_later_version_allows_nothing(alice, vision):
    issued = make_token(alice)
    ApiToken.objects.update(scopes=["jobs:teleport"])
    issued.token.refresh_from_db()

    viewer = viewer_of(alice, issued.token)

    assert viewer.scopes == frozenset()
    assert not viewer.can(Permission.VIEW_JOBS, vision.pk)


def test_a_rotated_token_is_the_same_with_another_key(alice, vision):
    old = make_token(alice, Scope.JOBS_WRITE, tenant=vision, expires_in=timedelta(days=9))
    later = NOW + timedelta(days=3)

    new = rotate_token(viewer=viewer_of(alice), token_id=old.token.pk, now=later)

    assert authenticate_token(old.key, later) is None
    assert authenticate_token(new.key, later) is not None
    assert (new.token.scopes, new.token.tenant_id) == (["jobs:write"], vision.pk)
    assert new.token.expires_at == later + timedelta(days=9)


def test_a_rotation_that_fails_leaves_the_old_key(alice, vision):
    old = make_token(alice, Scope.JOBS_WRITE)
    member = vision.memberships.get(user=alice)
    update_member(viewer=SYSTEM, membership_id=member.pk, role=Role.VIEWER)

    with pytest.raises(InvalidError):
        rotate_token(viewer=viewer_of(alice), token_id=old.token.pk, now=NOW)

    assert authenticate_token(old.key, NOW) is not None


def test_a_dead_token_is_not_brought_back_by_rotation(alice):
    old = make_token(alice)
    revoke_token(viewer=viewer_of(alice), token_id=old.token.pk, now=NOW)

    with pytest.raises(NotFoundError):
        rotate_token(viewer=viewer_of(alice), token_id=old.token.pk, now=NOW)


def test_nobody_else_lists_them_and_only_an_admin_may_revoke_them(alice):
    issued = make_token(alice)
    make_user("bob")
    make_user("root", is_cluster_admin=True)

    with pytest.raises(NotFoundError):
        revoke_token(viewer=make_viewer("bob"), token_id=issued.token.pk, now=NOW)
    assert tokens_for(make_viewer("bob")) == tokens_for(make_viewer("root")) == ()
    revoke_token(viewer=make_viewer("root"), token_id=issued.token.pk, now=NOW)

    assert authenticate_token(issued.key, NOW) is None


def test_a_lead_sees_and_ends_tokens_of_members_that_open_the_tenant_alone(alice, vision):
    lena = make_member(vision, make_user("lena"), Role.LEAD).user
    other = make_tenant("other", alice=Role.MEMBER, bob=Role.LEAD)
    bound, free = make_token(alice, tenant=vision), make_token(alice)
    elsewhere = make_token(alice, tenant=other)
    root = make_user("root", is_cluster_admin=True)
    foreign = make_token(root, tenant=vision)
    viewer = viewer_of(lena)
    by_token = viewer_of(lena, make_token(lena, Scope.TENANT_ADMIN).token)

    seen = tokens_in_tenant(viewer, vision.pk, now=NOW)

    assert [row.prefix for row in seen] == [bound.token.prefix]
    assert tokens_in_tenant(viewer, other.pk, now=NOW) == ()
    assert tokens_in_tenant(viewer_of(alice), vision.pk, now=NOW) == ()
    assert tokens_in_tenant(by_token, vision.pk, now=NOW) == ()
    for token in (free, elsewhere, foreign):
        with pytest.raises(NotFoundError):
            revoke_token(viewer=viewer, token_id=token.token.pk, now=NOW)
    for who in (by_token, make_viewer("bob")):
        with pytest.raises(NotFoundError):
            revoke_token(viewer=who, token_id=bound.token.pk, now=NOW)
    with pytest.raises(NotFoundError):
        rotate_token(viewer=viewer, token_id=bound.token.pk, now=NOW)
    revoke_token(viewer=viewer, token_id=bound.token.pk, now=NOW)
    assert authenticate_token(bound.key, NOW) is None
    assert tokens_in_tenant(viewer, vision.pk, now=NOW) == ()
    written = AuditEntry.objects.unscoped().get(action="token.revoke")
    assert (written.actor_name, written.tenant_id) == ("lena", vision.pk)


def test_a_token_may_end_itself_and_no_other(alice):
    mine, other = make_token(alice), make_token(alice)
    viewer = viewer_of(alice, mine.token)

    with pytest.raises(NotFoundError):
        revoke_token(viewer=viewer, token_id=other.token.pk, now=NOW)
    revoke_token(viewer=viewer, token_id=mine.token.pk, now=NOW)

    assert authenticate_token(mine.key, NOW) is None


def test_a_bound_token_lists_the_tokens_of_its_tenant_only(alice, vision):
    bound = make_token(alice, tenant=vision)
    make_token(alice)

    rows = tokens_for(viewer_of(alice, bound.token))

    assert [row.prefix for row in rows] == [bound.token.prefix]


def test_revoking_twice_is_recorded_once(alice):
    issued = make_token(alice)

    for _ in range(2):
        revoke_token(viewer=viewer_of(alice), token_id=issued.token.pk, now=NOW)

    assert AuditEntry.objects.unscoped().filter(action="token.revoke").count() == 1
