"""Making, changing and putting away tenants."""

import pytest

from tenants.errors import (
    ConflictError,
    DuplicateError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    StaleEditError,
)
from tenants.models import AuditEntry, Tenant
from tenants.roles import Role
from tenants.selectors import tenant_for, tenants_for
from tenants.services import archive_tenant, create_tenant, restore_tenant, update_tenant
from tests.factories.tenants import NOW, SYSTEM, make_tenant, make_user, make_viewer

pytestmark = pytest.mark.django_db


def test_tenants_take_positions_in_order_and_keep_them():
    first, second = make_tenant("vision"), make_tenant("language")

    archive_tenant(viewer=SYSTEM, tenant_id=first.pk, now=NOW)

    assert (first.position, second.position, make_tenant("robots").position) == (1, 2, 3)


@pytest.mark.parametrize(
    "name", ["", "Vision", "1st", "a b", "a_b", "-a", "a-", "a" * 41, "ä", "a\n", "a;rm", "../x"]
)
def test_a_name_that_could_mean_something_else_is_refused(name):
    with pytest.raises(InvalidError) as refusal:
        create_tenant(viewer=SYSTEM, name=name)

    assert refusal.value.errors[0].field == "name"
    assert not Tenant.objects.unscoped().exists()


@pytest.mark.parametrize("name", ["a", "vision", "a-1", "v2", "a" * 40])
def test_a_plain_name_is_taken(name):
    assert create_tenant(viewer=SYSTEM, name=name).display_name == name


def test_people_may_read_any_words():
    made = create_tenant(
        viewer=SYSTEM, name="vision", display_name="Vision & 视觉 <b>", note="a\n'b'"
    )

    assert tenant_for(SYSTEM, "vision").display_name == "Vision & 视觉 <b>"
    assert tenant_for(SYSTEM, made.pk).note == "a\n'b'"


def test_words_that_cannot_be_shown_are_refused_together():
    with pytest.raises(InvalidError) as refusal:
        create_tenant(viewer=SYSTEM, name="x", display_name="a\x00b", note="n" * 2001)

    assert [error.field for error in refusal.value.errors] == ["display_name", "note"]
    assert len(str(refusal.value.errors[1].as_dict()["value"])) < 300


def test_a_name_is_given_once():
    make_tenant("vision")

    with pytest.raises(DuplicateError) as refusal:
        make_tenant("vision")

    assert (refusal.value.field, refusal.value.value) == ("name", "vision")


def test_only_a_cluster_admin_makes_and_changes_tenants():
    vision = make_tenant("vision", alice=Role.LEAD)
    make_user("bob")

    with pytest.raises(ForbiddenError):
        create_tenant(viewer=make_viewer("alice"), name="mine")
    with pytest.raises(ForbiddenError):
        update_tenant(viewer=make_viewer("alice"), tenant_id=vision.pk, note="x")
    with pytest.raises(NotFoundError):
        archive_tenant(viewer=make_viewer("bob"), tenant_id=vision.pk, now=NOW)
    with pytest.raises(NotFoundError):
        update_tenant(viewer=SYSTEM, tenant_id=10_000, note="x")


def test_an_edit_is_recorded_with_what_changed_only():
    vision = make_tenant("vision")

    after = update_tenant(
        viewer=SYSTEM, tenant_id=vision.pk, display_name="vision", note="new", expected_version=1
    )

    entry = AuditEntry.objects.unscoped().first()
    assert entry is not None
    assert (after.version, after.note) == (2, "new")
    assert (entry.action, entry.before, entry.after) == (
        "tenant.update",
        {"note": ""},
        {"note": "new"},
    )


def test_the_slower_editor_is_told_and_writes_nothing():
    vision = make_tenant("vision")
    update_tenant(viewer=SYSTEM, tenant_id=vision.pk, note="first", expected_version=1)

    with pytest.raises(StaleEditError) as refusal:
        update_tenant(viewer=SYSTEM, tenant_id=vision.pk, note="second", expected_version=1)

    assert (refusal.value.status, refusal.value.code) == (412, "stale-edit")
    assert tenant_for(SYSTEM, "vision").note == "first"


def test_an_archived_tenant_is_seen_and_comes_back():
    vision = make_tenant("vision", alice=Role.MEMBER)
    archive_tenant(viewer=SYSTEM, tenant_id=vision.pk, now=NOW)

    with pytest.raises(ConflictError):
        archive_tenant(viewer=SYSTEM, tenant_id=vision.pk, now=NOW)
    assert list(tenants_for(make_viewer("alice"))) == [vision]
    assert not tenants_for(make_viewer("alice"), with_archived=False).exists()

    restore_tenant(viewer=SYSTEM, tenant_id=vision.pk)
    with pytest.raises(ConflictError):
        restore_tenant(viewer=SYSTEM, tenant_id=vision.pk)
    assert tenants_for(make_viewer("alice"), with_archived=False).exists()


def test_a_foreign_tenant_and_none_at_all_look_the_same():
    vision = make_tenant("vision")
    make_user("bob")

    for wanted in (vision.pk, "vision", 10_000, "nothing"):
        with pytest.raises(NotFoundError, match="may not see it"):
            tenant_for(make_viewer("bob"), wanted)
