"""Edits of rows with a version: concurrent editors, and edits that change nothing."""

import pytest

from tenants.edits import UNCHANGED, given, require_version, update_row
from tenants.errors import StaleEditError
from tenants.models import AuditEntry, Tenant
from tenants.viewers import Viewer
from tests.factories.tenants import make_tenant

pytestmark = pytest.mark.django_db


@pytest.fixture
def tenant() -> Tenant:
    return make_tenant("vision")


def edit(tenant: Tenant, name: str, *, expected: int | None = None) -> bool:
    return update_row(
        Tenant.objects.unscoped(),
        tenant,
        kind="tenant",
        expected_version=expected,
        read_version=tenant.version,
        values={"name": name},
        viewer=Viewer.system("admin"),
        action="tenant.update",
        shown=lambda values: {**values, "shown": True},
    )


def entries() -> list[AuditEntry]:
    return list(AuditEntry._base_manager.filter(action="tenant.update"))


def test_an_edit_writes_the_row_its_next_version_and_one_audit_entry(tenant: Tenant) -> None:
    version = tenant.version

    assert edit(tenant, "language")

    assert (tenant.name, tenant.version) == ("language", version + 1)
    (entry,) = entries()
    assert entry.before == {"name": "vision", "shown": True}
    assert entry.after == {"name": "language", "shown": True}


def test_an_edit_with_equal_values_writes_nothing(tenant: Tenant) -> None:
    version = tenant.version

    assert not edit(tenant, "vision")

    tenant.refresh_from_db()
    assert tenant.version == version
    assert entries() == []


def test_of_two_editors_of_one_version_the_second_is_refused(tenant: Tenant) -> None:
    other = Tenant.objects.unscoped().get(pk=tenant.pk)
    seen = tenant.version
    assert edit(other, "language", expected=seen)

    for expected in (None, seen):
        with pytest.raises(StaleEditError):
            edit(tenant, "speech", expected=expected)

    tenant.refresh_from_db()
    assert tenant.name == "language"
    assert len(entries()) == 1


def test_a_version_that_nobody_expects_is_accepted() -> None:
    require_version(3, None, kind="tenant")
    require_version(3, 3, kind="tenant")
    with pytest.raises(StaleEditError):
        require_version(3, 2, kind="tenant")


def test_given_leaves_out_unchanged_arguments_and_keeps_none() -> None:
    assert given(name=UNCHANGED, cap=None, note="") == {"cap": None, "note": ""}
