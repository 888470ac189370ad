"""Django's admin works on rows that need a scope, and leaves a record."""

from typing import Any

import pytest
from django.contrib import admin
from django.test import RequestFactory

from tenants.admin import MembershipAdmin, TenantAdmin, TesseraUserAdmin
from tenants.models import ApiToken, AuditEntry, Membership, Tenant, User
from tenants.roles import Role
from tests.factories.tenants import make_tenant, make_token, make_user

pytestmark = pytest.mark.django_db


@pytest.fixture
def root(client):
    user = make_user("root", is_cluster_admin=True)
    client.force_login(user)
    return user


@pytest.mark.parametrize("model", [User, Tenant, Membership, ApiToken, AuditEntry])
def test_every_list_and_form_opens(rf, root, model):
    vision = make_tenant("vision", alice=Role.LEAD)
    make_token(User.objects.get(username="alice"), tenant=vision)
    row = model._base_manager.first()
    page = admin.site.get_model_admin(model)

    for view in (
        lambda: page.changelist_view(request_of(root)),
        lambda: page.changeform_view(request_of(root), str(row.pk)),
        lambda: page.history_view(request_of(root), str(row.pk)),
    ):
        response = view()
        assert response.status_code == 200
        assert response.content


def request_of(user, values=None):
    factory = RequestFactory()
    request: Any = factory.get("/") if values is None else factory.post("/", values)
    request.user = user
    request._messages = Silent()
    request._dont_enforce_csrf_checks = True
    return request


class Silent:
    """Takes the admin's messages and keeps none."""

    def add(self, level, message, extra_tags=""):
        return None

    def __iter__(self):
        return iter(())


def test_a_change_made_there_is_recorded(root):
    vision = make_tenant("vision", alice=Role.MEMBER)
    alice = vision.memberships.get()
    values = {"tenant": vision.pk, "user": alice.user_id, "role": "lead", "max_devices": ""}

    page = MembershipAdmin(Membership, admin.site)
    response = page.changeform_view(request_of(root, values), str(alice.pk))

    entry = AuditEntry.objects.unscoped().first()
    assert entry is not None
    assert response.status_code == 302
    assert vision.memberships.get().role == "lead"
    assert (entry.action, entry.actor_name, entry.tenant) == ("admin.change", "root", vision)
    assert (entry.before, entry.after) == ({"role": "member"}, {"role": "lead"})


def test_a_row_that_exists_already_is_refused_by_the_form(root):
    vision = make_tenant("vision", alice=Role.MEMBER)
    alice = vision.memberships.get()
    values = {"tenant": vision.pk, "user": alice.user_id, "role": "lead", "max_devices": ""}

    page = MembershipAdmin(Membership, admin.site)
    response = page.changeform_view(request_of(root, values))

    assert response.status_code == 200
    assert vision.memberships.count() == 1


def test_a_deletion_made_there_is_recorded(root):
    vision = make_tenant("vision", alice=Role.MEMBER)
    page = MembershipAdmin(Membership, admin.site)

    page.delete_queryset(request_of(root), page.get_queryset(request_of(root)))

    assert not vision.memberships.exists()
    entry = AuditEntry.objects.unscoped().first()
    assert entry is not None
    assert entry.action == "admin.delete"


def test_people_and_tenants_cannot_be_deleted_there(root):
    request = request_of(root)

    assert not TesseraUserAdmin(User, admin.site).has_delete_permission(request)
    assert not TenantAdmin(Tenant, admin.site).has_delete_permission(request)
