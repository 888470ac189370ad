"""Tenant-scoped query sets: without ``visible_to(viewer)`` they do not run.

A model whose rows belong to a tenant declares it once::

    objects = TenantManager("tenant_id")
    objects = TenantManager.from_queryset(JobQuerySet)("tenant_id")   # with domain verbs

``Model.objects.filter(...)`` can be built but not run: iterating, counting, updating, deleting,
and use as a subquery raise ``UnscopedQueryError``. ``.visible_to(viewer)`` restricts it to rows
that the viewer may see; ``.unscoped()`` declares that the code works for all tenants (services,
tasks
and snapshots, never pages). Rows reached from the row that owns them (``tenant.memberships``
where the path starts with ``tenant``) are as scoped as their owner. Django's own machinery
(``save``, forward foreign keys, cascades) uses ``_base_manager``, which is unscoped.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Generic, Self, TypeVar, cast

from django.db import models
from django.db.models import sql

from tenants.roles import Permission
from tenants.viewers import Viewer

M_co = TypeVar("M_co", bound=models.Model, covariant=True)

_everything_allowed: ContextVar[bool] = ContextVar("tessera_unscoped_queries", default=False)


class UnscopedQueryError(RuntimeError):
    """A query on rows of tenants has no scope; it did not run."""

    def __init__(self, model: type[models.Model], act: str = "query") -> None:
        """Build the message with the model and both remedies."""
        super().__init__(
            f"{act} of {model.__name__} without a tenant scope: "
            "call .visible_to(viewer), or .unscoped() in a service that works for all tenants"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRule:
    """The scope rule of a model's rows.

    Attributes:
        path: lookup from a row to its tenant's id (``tenant_id``, ``job__tenant_id``).
        permission: permission in that tenant that makes the row visible.
    """

    path: str
    permission: Permission


_RULES: Final[dict[type[models.Model], TenantRule]] = {}


def tenant_rule_of(model: type[models.Model]) -> TenantRule | None:
    """Return the rule that ``model`` or its base declared, or None if there is none."""
    return next((_RULES[base] for base in model.__mro__ if base in _RULES), None)


@contextmanager
def unscoped_queries() -> Iterator[None]:
    """Allow unscoped queries inside the block, for Django code that we cannot change (admin)."""
    token = _everything_allowed.set(True)
    try:
        yield
    finally:
        _everything_allowed.reset(token)


class TenantQuery(sql.Query):
    """Query that compiles to SQL only with a scope.

    Every execution and every use as a subquery compiles the query, so no queryset method can
    bypass the check.
    """

    is_scoped: bool = False

    def get_compiler(self, *args: Any, **kwargs: Any) -> Any:
        """Return a compiler for a scoped query only (Django calls this before any SQL)."""
        self.require_scope()
        return super().get_compiler(*args, **kwargs)

    def require_scope(self, act: str = "query") -> None:
        """Raise an error unless the query is scoped or unscoped queries are allowed here."""
        if not self.is_scoped and not _everything_allowed.get():
            raise UnscopedQueryError(cast("type[models.Model]", self.model), act)


class TenantScopedQuerySet(models.QuerySet[M_co], Generic[M_co]):
    """A query set over rows of tenants; see the module's docstring."""

    def __init__(
        self,
        model: type[models.Model] | None = None,
        query: sql.Query | None = None,
        using: str | None = None,
        hints: dict[str, models.Model] | None = None,
    ) -> None:
        """Create the set from a query with or without a scope."""
        if query is None and model is not None:
            query = TenantQuery(model)
        super().__init__(model, query, using, hints)

    def visible_to(self, viewer: Viewer, permission: Permission | None = None) -> Self:
        """Narrow to the rows of tenants in which ``viewer`` holds the permission.

        Args:
            viewer: the reader.
            permission: by default the one the model declared.
        """
        rule = tenant_rule_of(self.model)
        if rule is None:
            raise UnscopedQueryError(self.model, "visible_to (no TenantManager declared a path)")
        tenant_ids = viewer.tenant_ids(permission or rule.permission)
        if tenant_ids is None:
            return self._scoped(self.all())
        return self._scoped(self.filter(**{f"{rule.path}__in": tenant_ids}))

    def unscoped(self) -> Self:
        """Work on the rows of all tenants; services, tasks and snapshots only."""
        return self._scoped(self.all())

    def update(self, **kwargs: Any) -> int:
        """Update rows like Django; requires a scope."""
        self._require_scope("update")
        return super().update(**kwargs)

    def delete(self) -> tuple[int, dict[str, int]]:
        """Delete rows like Django; requires a scope."""
        self._require_scope("delete")
        return super().delete()

    def raw(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: hand-written SQL would ignore the scope."""
        raise UnscopedQueryError(self.model, "raw SQL")

    def _update(self, values: Any, *args: Any, **kwargs: Any) -> int:
        self._require_scope("update")
        return cast("int", super()._update(values, *args, **kwargs))  # type: ignore[misc]

    def _raw_delete(self, using: str | None) -> int:
        self._require_scope("delete")
        return super()._raw_delete(using)

    def __and__(self, other: Any) -> Any:
        return self._joined(other, super().__and__)

    def __or__(self, other: Any) -> Any:
        return self._joined(other, super().__or__)

    def __xor__(self, other: Any) -> Any:
        return self._joined(other, super().__xor__)

    def _joined(self, other: Any, join: Any) -> Any:
        # Scoped OR unscoped would be unscoped, so both halves must be scoped.
        self._require_scope("combination")
        other._require_scope("combination")
        return join(other)

    def _require_scope(self, act: str) -> None:
        query = self.query
        if isinstance(query, TenantQuery):
            query.require_scope(act)

    def _scoped(self, queryset: Self) -> Self:
        query = queryset.query
        if isinstance(query, TenantQuery):
            query.is_scoped = True
        return queryset


class TenantManager(models.Manager[M_co], Generic[M_co]):
    """The manager of rows that belong to tenants; unscoped use raises an error."""

    _queryset_class: type[models.QuerySet[Any]] = TenantScopedQuerySet

    def __init__(
        self, tenant_path: str = "", permission: Permission = Permission.VIEW_JOBS
    ) -> None:
        """Declare the scope of rows.

        Args:
            tenant_path: lookup from a row to its tenant's id. Django creates managers of related
        rows without it; those use the model's declaration.
            permission: permission in the tenant that makes its rows visible.
        """
        super().__init__()
        self.tenant_path = tenant_path
        self.permission = permission

    def contribute_to_class(self, cls: type[models.Model], name: str) -> None:
        """Store the rule when Django attaches the manager to its model."""
        super().contribute_to_class(cls, name)
        if self.tenant_path:
            _RULES[cls] = TenantRule(path=self.tenant_path, permission=self.permission)

    def get_queryset(self) -> TenantScopedQuerySet[M_co]:
        """Return a query set without a scope, or with that of the row it was reached from."""
        queryset = cast("TenantScopedQuerySet[M_co]", super().get_queryset())
        return queryset.unscoped() if self._is_of_owner() else queryset

    def visible_to(
        self, viewer: Viewer, permission: Permission | None = None
    ) -> TenantScopedQuerySet[M_co]:
        """Return the rows that ``viewer`` may see; see ``TenantScopedQuerySet.visible_to``."""
        return self.get_queryset().visible_to(viewer, permission)

    def unscoped(self) -> TenantScopedQuerySet[M_co]:
        """Return the rows of all tenants; for services, tasks and snapshots only."""
        return self.get_queryset().unscoped()

    def _is_of_owner(self) -> bool:
        # Set by Django on managers of related rows only (tenant.memberships, job.attempts).
        relation = getattr(self, "field", None)
        rule = tenant_rule_of(self.model) if relation is not None else None
        if relation is None or rule is None:
            return False
        first_step = rule.path.split("__")[0]
        return first_step in (relation.name, relation.attname)
