"""The query set that cannot forget the tenant."""

import re
from pathlib import Path
from typing import Any, ClassVar

import pytest
from django.apps import apps
from django.db import models
from django.db.models import Exists, Max, OuterRef, Q
from django.test.utils import isolate_apps

from tenants.models import AuditEntry, Membership, Tenant, User
from tenants.roles import Permission, Role
from tenants.selectors import viewer_of
from tenants.tenancy import (
    TenantManager,
    TenantScopedQuerySet,
    UnscopedQueryError,
    tenant_rule_of,
    unscoped_queries,
)
from tests.factories.tenants import make_tenant, make_viewer

ROOT = Path(__file__).resolve().parents[2]

BARE_USES = {
    "iterate": lambda: list(Tenant.objects.all()),
    "iterator": lambda: list(Tenant.objects.iterator()),
    "index": lambda: Tenant.objects.all()[0],
    "count": Tenant.objects.count,
    "exists": lambda: Tenant.objects.filter(name="vision").exists(),
    "contains": lambda: Tenant.objects.all().contains(Tenant(pk=1)),
    "get": lambda: Tenant.objects.get(name="vision"),
    "first": Tenant.objects.first,
    "latest": lambda: Tenant.objects.latest("created_at"),
    "in_bulk": lambda: Tenant.objects.in_bulk([1]),
    "values": lambda: list(Tenant.objects.values_list("name")),
    "dates": lambda: list(Tenant.objects.datetimes("created_at", "day")),
    "aggregate": lambda: Tenant.objects.aggregate(Max("position")),
    "explain": lambda: Tenant.objects.all().explain(),
    "update": lambda: Tenant.objects.update(note="x"),
    "bulk_update": lambda: Tenant.objects.bulk_update([Tenant(pk=1)], ["note"]),
    "delete": lambda: Tenant.objects.all().delete(),
    "get_or_create": lambda: Tenant.objects.get_or_create(name="x"),
    "update_or_create": lambda: Tenant.objects.update_or_create(name="x"),
    "raw": lambda: list(Tenant.objects.raw("SELECT * FROM tenants_tenant")),
    "subquery": lambda: list(User.objects.filter(memberships__in=Membership.objects.all())),
    "exists subquery": lambda: list(
        User.objects.filter(Exists(Membership.objects.filter(user=OuterRef("pk"))))
    ),
    "union": lambda: list(Tenant.objects.unscoped().union(Tenant.objects.all())),
    "or": lambda: list(Tenant.objects.unscoped() | Tenant.objects.all()),
    "or of a slice": lambda: list(Tenant.objects.unscoped()[:1] | Tenant.objects.all()),
    "and": lambda: list(Tenant.objects.all() & Tenant.objects.unscoped()),
    "xor": lambda: list(Tenant.objects.unscoped() ^ Tenant.objects.all()),
    "prefetch from a stranger": lambda: list(User.objects.prefetch_related("memberships")),
    "rows of a user": lambda: list(User.objects.get(username="alice").memberships.all()),
}


@pytest.mark.django_db
@pytest.mark.parametrize("use", BARE_USES.values(), ids=BARE_USES)
def test_a_query_without_a_scope_does_not_run(use):
    make_tenant("vision", alice=Role.LEAD)

    with pytest.raises(UnscopedQueryError):
        use()


@pytest.mark.django_db
def test_the_error_names_the_model_and_the_way_out():
    with pytest.raises(UnscopedQueryError, match=r"Tenant .*visible_to\(viewer\)"):
        Tenant.objects.count()


@pytest.mark.django_db
def test_a_scope_survives_whatever_is_chained_after_it():
    make_tenant("vision", alice=Role.MEMBER)
    make_tenant("language", bob=Role.MEMBER)
    mine = Tenant.objects.visible_to(make_viewer("alice"))

    assert [tenant.name for tenant in mine.filter(Q(name="vision") | Q(name="language"))] == [
        "vision"
    ]
    assert mine.exclude(name="vision").count() == 0
    assert list(mine.order_by().union(mine.order_by()).values_list("name", flat=True)) == [
        "vision"
    ]
    assert (mine | mine).count() == 1
    assert mine.aggregate(last=Max("position"))["last"] == 1
    assert mine.update(note="seen") == 1


@pytest.mark.django_db
def test_rows_of_a_tenant_are_scoped_by_the_tenant_they_are_reached_from():
    vision = make_tenant("vision", alice=Role.LEAD, carol=Role.VIEWER)
    make_tenant("language", bob=Role.LEAD)

    prefetched = Tenant.objects.unscoped().prefetch_related("memberships").get(pk=vision.pk)

    assert vision.memberships.count() == 2
    assert len(prefetched.memberships.all()) == 2
    assert vision.memberships.filter(role=Role.LEAD).get().user.username == "alice"


@pytest.mark.django_db
def test_what_django_does_by_itself_needs_no_scope():
    vision = make_tenant("vision", alice=Role.LEAD)
    member = vision.memberships.get()

    vision.note = "changed"
    vision.save()
    vision.refresh_from_db()
    member = Membership.objects.unscoped().get(pk=member.pk)

    assert vision.note == "changed"
    assert member.tenant == vision
    assert User.objects.get(username="alice").delete()[1]["tenants.Membership"] == 1


@pytest.mark.django_db
def test_code_of_others_runs_inside_a_block_that_says_so():
    vision = make_tenant("vision")

    with unscoped_queries():
        assert Tenant.objects.count() == 1
        vision.full_clean()

    with pytest.raises(UnscopedQueryError):
        Tenant.objects.count()


class Words(TenantScopedQuerySet):
    """A query set with a verb of the domain."""

    def short(self):
        return self.filter(text="short")


@isolate_apps("tenants")
def test_a_longer_path_and_verbs_of_the_domain_keep_the_scope():
    class Remark(models.Model):
        membership = models.ForeignKey(Membership, models.CASCADE, related_name="+")
        text = models.CharField(max_length=10)
        objects: ClassVar[Any] = TenantManager.from_queryset(Words)("membership__tenant_id")

        class Meta:
            app_label = "tenants"

        def __str__(self):
            return self.text

    who = viewer_with(roles={7: Role.VIEWER})

    sql = str(Remark.objects.short().visible_to(who).query)

    assert "INNER JOIN" in sql
    assert re.search(r'"tenant_id" IN \(7\)', sql)
    with pytest.raises(UnscopedQueryError):
        str(Remark.objects.short().query)


def viewer_with(**facts):
    from tenants.viewers import Viewer

    return Viewer(user_id=1, username="alice", **facts)


@pytest.mark.django_db
def test_a_model_may_ask_for_another_permission_than_looking_at_jobs():
    make_tenant("vision", alice=Role.MEMBER, carol=Role.LEAD)

    assert not AuditEntry.objects.visible_to(make_viewer("alice")).exists()
    assert AuditEntry.objects.visible_to(make_viewer("carol")).exists()
    assert not Tenant.objects.visible_to(make_viewer("alice"), Permission.MANAGE_MEMBERS).exists()


@pytest.mark.django_db
def test_a_viewer_is_read_in_one_query_and_an_admin_in_two(django_assert_num_queries):
    make_tenant("vision", alice=Role.LEAD)
    alice = User.objects.get(username="alice")

    with django_assert_num_queries(1):
        assert viewer_of(alice).roles
    alice.is_superuser = True
    with django_assert_num_queries(2):
        assert viewer_of(alice).is_cluster_admin


def test_every_model_with_a_tenant_reports_how_it_belongs_to_it():
    # A token belongs to its owner; its tenant only narrows it. A limit is read by its key alone.
    by_owner = {"ApiToken", "JobLimit"}

    forgotten = [
        model.__name__
        for model in apps.get_models()
        if any(field.related_model is Tenant for field in model._meta.concrete_fields)
        and tenant_rule_of(model) is None
        and model.__name__ not in by_owner
    ]

    assert forgotten == []


def test_no_face_works_without_a_scope():
    evasions = re.compile(r"\bunscoped\b|unscoped_queries|_base_manager|_default_manager")

    commands = ROOT / "portal/management/commands"

    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sorted((ROOT / "portal").rglob("*.py"))
        if path.parent != commands
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if evasions.search(line)
    ]

    assert found == []
