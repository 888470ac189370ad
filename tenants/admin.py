"""Django's admin for the rows of this package, for emergencies; each change is audited."""

from typing import TYPE_CHECKING, Any, cast

from django.contrib import admin
from django.contrib.auth.admin import UserAdmin
from django.db import models, transaction
from django.db.models import QuerySet
from django.forms import ModelForm
from django.forms.models import model_to_dict
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.template.response import SimpleTemplateResponse

from tenants.audit import Actor, changed, record
from tenants.models import ApiToken, AuditEntry, Membership, Tenant, User
from tenants.tenancy import TenantScopedQuerySet, unscoped_queries

if TYPE_CHECKING:
    BaseAdmin = admin.ModelAdmin[models.Model]
    BaseUserAdmin = UserAdmin[User]
    Form = ModelForm[models.Model]
else:  # Django's admin classes are generic in their stubs only
    BaseAdmin, BaseUserAdmin, Form = admin.ModelAdmin, UserAdmin, ModelForm


class TenantScopedAdmin(BaseAdmin):
    """Shows rows of all tenants (only to cluster admins) and records each change."""

    def get_queryset(self, request: HttpRequest) -> QuerySet[models.Model]:
        """Return all rows, explicitly unscoped."""
        rows = super().get_queryset(request)
        return rows.unscoped() if isinstance(rows, TenantScopedQuerySet) else rows

    def changelist_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """Show the list, whose filters and pages use Django's own queries."""
        with unscoped_queries():
            return _rendered(super().changelist_view(request, *args, **kwargs))

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """Show the form, whose choices and uniqueness checks use Django's own queries."""
        with unscoped_queries():
            return _rendered(super().changeform_view(request, *args, **kwargs))

    def delete_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """Confirm a deletion, with a list of all dependent rows."""
        with unscoped_queries():
            return _rendered(super().delete_view(request, *args, **kwargs))

    def history_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """Show the changes of the row by this admin."""
        with unscoped_queries():
            return _rendered(super().history_view(request, *args, **kwargs))

    def save_model(
        self, request: HttpRequest, obj: models.Model, form: Form, change: bool
    ) -> None:
        """Save and record in one transaction."""
        with transaction.atomic():
            stored = type(obj)._base_manager.filter(pk=obj.pk).first() if change else None
            super().save_model(request, obj, form, change)
            self._record(request, obj, "admin.change" if change else "admin.add", stored, obj)

    def delete_model(self, request: HttpRequest, obj: models.Model) -> None:
        """Delete and record in one transaction."""
        with transaction.atomic():
            self._record(request, obj, "admin.delete", obj, None)
            super().delete_model(request, obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[models.Model]) -> None:
        """Delete one by one, so that each is recorded."""
        for row in queryset:
            self.delete_model(request, row)

    def _record(
        self,
        request: HttpRequest,
        obj: models.Model,
        action: str,
        old: models.Model | None,
        new: models.Model | None,
    ) -> None:
        before, after = changed(_facts(old), _facts(new))
        user = cast("User", request.user)
        record(
            actor=Actor(user_id=user.pk, name=user.username),
            action=action,
            obj=obj,
            before=before,
            after=after,
            tenant=_tenant_of(obj),
        )


class ReadOnlyAdmin(TenantScopedAdmin):
    """Shows rows that are not editable by hand."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False: rows are read-only here."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False: rows are read-only here."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False: rows are read-only here."""
        return False


@admin.register(User)
class TesseraUserAdmin(TenantScopedAdmin, BaseUserAdmin):
    """Users, with their preferences."""

    list_display = ("username", "email", "is_active", "is_superuser", "last_login")
    fieldsets = (
        *(UserAdmin.fieldsets or ()),
        ("Portal", {"fields": ("theme", "language", "time_zone")}),
    )

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False: the audit names people; deactivate them instead."""
        return False


@admin.register(Tenant)
class TenantAdmin(TenantScopedAdmin):
    """Tenants; archived rather than deleted, since their history names them."""

    list_display = ("name", "display_name", "position", "created_at", "archived_at")
    readonly_fields = ("position", "created_at", "version", "members_version")
    search_fields = ("name", "display_name")

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return False: the service assigns the position."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False: tenants are archived, not deleted."""
        return False


@admin.register(Membership)
class MembershipAdmin(TenantScopedAdmin):
    """Roles of people in tenants."""

    list_display = ("tenant", "user", "role", "max_devices", "created_at")
    list_filter = ("role", "tenant")
    list_select_related = ("tenant", "user")
    readonly_fields = ("created_at", "version")


@admin.register(ApiToken)
class ApiTokenAdmin(ReadOnlyAdmin):
    """Tokens; revoked through the portal."""

    list_display = ("name", "prefix", "user", "tenant", "expires_at", "revoked_at")
    list_select_related = ("tenant", "user")
    exclude = ("digest",)


@admin.register(AuditEntry)
class AuditEntryAdmin(ReadOnlyAdmin):
    """The record, to read."""

    list_display = ("at", "actor_name", "action", "object_type", "object_name", "tenant")
    list_select_related = ("tenant",)
    list_filter = ("action", "object_type")
    search_fields = ("actor_name", "object_name", "request_id")


def _rendered(response: HttpResponseBase) -> HttpResponseBase:
    # The scope must cover rendering, since templates run queries.
    if isinstance(response, SimpleTemplateResponse):
        return response.render()
    return response


def _facts(row: models.Model | None) -> dict[str, object]:
    if row is None:
        return {}
    return {
        name: value for name, value in model_to_dict(row).items() if not isinstance(value, list)
    }


def _tenant_of(row: models.Model) -> int | None:
    found = row.pk if isinstance(row, Tenant) else getattr(row, "tenant_id", None)
    return found if isinstance(found, int) else None
