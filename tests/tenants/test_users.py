"""People."""

import pytest
from django.contrib.auth import authenticate

from tenants.errors import (
    ConflictError,
    DuplicateError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
)
from tenants.models import AuditEntry, User
from tenants.roles import Role, Scope
from tenants.selectors import viewer_of
from tenants.services import (
    create_user,
    grant_cluster_admin,
    revoke_cluster_admin,
    set_password,
    set_preferences,
    set_user_active,
)
from tests.factories.tenants import (
    PASSWORD,
    SYSTEM,
    make_tenant,
    make_token,
    make_user,
    make_viewer,
)

pytestmark = pytest.mark.django_db

NEW = "another long phrase"


def test_a_person_signs_in_by_name_in_whatever_case():
    alice = make_user("Alice")

    assert authenticate(username="aLICE", password=PASSWORD) == alice
    assert authenticate(username="alice", password="wrong") is None


def test_a_name_is_one_name_in_every_case():
    make_user("alice")

    with pytest.raises(DuplicateError) as refusal:
        make_user("ALICE")

    assert (refusal.value.field, refusal.value.value) == ("username", "ALICE")


@pytest.mark.parametrize(
    "name", ["", " ", "a b", "-a", "аlice", "a\n", "a/b", "x" * 65, "$(id)", "a'b"]
)
def test_a_name_that_could_mean_something_else_is_refused(name):
    with pytest.raises(InvalidError) as refusal:
        create_user(viewer=SYSTEM, username=name, password=PASSWORD)

    assert [error.field for error in refusal.value.errors] == ["username"]


def test_all_faults_are_reported_at_once_and_no_password_is_repeated():
    with pytest.raises(InvalidError) as refusal:
        create_user(
            viewer=SYSTEM, username="a b", password="123", email="nowhere", first_name="x" * 151
        )

    errors = refusal.value.errors
    assert {error.field for error in errors} == {"username", "password", "email", "first_name"}
    assert all(error.value is None for error in errors if error.field == "password")
    assert not User.objects.exists()


def test_a_password_like_the_name_is_too_weak():
    with pytest.raises(InvalidError):
        create_user(viewer=SYSTEM, username="christopher", password="christopher1")


def test_without_a_password_nobody_gets_in():
    create_user(viewer=SYSTEM, username="alice")

    assert not User.objects.get().has_usable_password()


def test_only_a_cluster_admin_makes_people():
    make_tenant("vision", alice=Role.LEAD)

    with pytest.raises(ForbiddenError):
        create_user(viewer=make_viewer("alice"), username="carol")


def test_a_stolen_token_cannot_become_its_owner_or_another_admin():
    root, other = (make_user(name, is_cluster_admin=True) for name in ("root", "other"))
    viewer = viewer_of(root, make_token(root, Scope.TENANT_ADMIN).token)

    with pytest.raises(ForbiddenError):
        set_password(viewer=viewer, user_id=root.pk, password=NEW, current_password=PASSWORD)
    with pytest.raises(ForbiddenError):
        create_user(viewer=viewer, username="dave", password=NEW)
    with pytest.raises(ForbiddenError):
        grant_cluster_admin(viewer=viewer, user_id=make_user("carol").pk)
    with pytest.raises(ForbiddenError):
        create_user(viewer=viewer, username="dave", is_cluster_admin=True)
    with pytest.raises(ForbiddenError):
        set_user_active(viewer=viewer, user_id=other.pk, is_active=False)
    create_user(viewer=viewer, username="erin")


def test_the_cluster_is_given_and_taken():
    make_user("root", is_cluster_admin=True)
    alice = make_user("alice")
    viewer = make_viewer("root")

    grant_cluster_admin(viewer=viewer, user_id=alice.pk)
    assert make_viewer("alice").is_cluster_admin
    revoke_cluster_admin(viewer=viewer, user_id=alice.pk)

    assert not make_viewer("alice").is_cluster_admin
    actions = AuditEntry.objects.unscoped().values_list("action", flat=True)[:2]
    assert list(actions) == ["user.revoke_admin", "user.grant_admin"]


def test_the_last_cluster_admin_stays():
    root = make_user("root", is_cluster_admin=True)
    idle = make_user("idle", is_cluster_admin=True)
    set_user_active(viewer=SYSTEM, user_id=idle.pk, is_active=False)

    with pytest.raises(ConflictError):
        revoke_cluster_admin(viewer=SYSTEM, user_id=root.pk)
    with pytest.raises(ConflictError):
        set_user_active(viewer=SYSTEM, user_id=root.pk, is_active=False)
    revoke_cluster_admin(viewer=SYSTEM, user_id=idle.pk)

    assert User.objects.get(is_superuser=True) == root


def test_a_person_kept_out_runs_no_cluster():
    root = make_user("root", is_cluster_admin=True)
    root.is_active = False

    assert not viewer_of(root).is_cluster_admin


def test_preferences_are_ones_own_and_checked():
    make_user("alice")
    viewer = make_viewer("alice")

    user = set_preferences(
        viewer=viewer, theme="dark", language="zh-hans", time_zone="Europe/Vienna"
    )
    with pytest.raises(InvalidError) as refusal:
        set_preferences(viewer=viewer, theme="pink", language="tlh", time_zone="../../etc/passwd")

    assert {error.field for error in refusal.value.errors} == {"theme", "language", "time_zone"}
    user.refresh_from_db()
    assert (user.theme, user.language, user.time_zone) == ("dark", "zh-hans", "Europe/Vienna")
    with pytest.raises(NotFoundError):
        set_preferences(viewer=SYSTEM, theme="dark")
