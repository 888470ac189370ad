"""Query sets that cannot forget the tenant: without ``visible_to(viewer)`` they do not run.

A model whose rows belong to a tenant says so once::

    objects = TenantManager("tenant_id")
    objects = TenantManager.from_queryset(JobQuerySet)("tenant_id")   # with domain verbs

``Model.objects.filter(...)`` can be built but not run: iterating, counting, updating, deleting,
and use as a subquery raise ``UnscopedQueryError``. ``.visible_to(viewer)`` narrows it to what the
viewer may see; ``.unscoped()`` says aloud that the code works for all tenants (services, tasks
and snapshots; never a face). Rows reached from the row that owns them (``tenant.memberships``
where the path starts with ``tenant``) are as scoped as their owner. Django's own machinery
(``save``, forward foreign keys, cascades) uses ``_base_manager``, which stays plain.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar, cast

from django.apps import apps
from django.db import models
from django.db.models import sql

from tenants.roles import Permission, Role, Scope
from tenants.statements import Statement
from tenants.viewers import ANOTHER_TENANT, Viewer

if TYPE_CHECKING:
    from tenants.models import ApiToken, User

__all__ = [
    "ANOTHER_TENANT",
    "TenantManager",
    "TenantRule",
    "TenantScopedQuerySet",
    "UnscopedQueryError",
    "Viewer",
    "tenant_rule_of",
    "unscoped_queries",
    "viewer_of",
]

M_co = TypeVar("M_co", bound=models.Model, covariant=True)

_everything_allowed: ContextVar[bool] = ContextVar("tessera_unscoped_queries", default=False)


class UnscopedQueryError(RuntimeError):
    """A query on rows of tenants was about to run without saying for whom."""

    def __init__(self, model: type[models.Model], act: str = "query") -> None:
        """Name the model, and the two ways out."""
        super().__init__(
            f"{act} of {model.__name__} without a tenant scope: "
            "call .visible_to(viewer), or .unscoped() in a service that works for all tenants"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRule:
    """How the rows of a model belong to tenants.

    Attributes:
        path: lookup from a row to its tenant's id (``tenant_id``, ``job__tenant_id``).
        permission: what one must be allowed to do in that tenant to see the row.
    """

    path: str
    permission: Permission


_RULES: Final[dict[type[models.Model], TenantRule]] = {}


def tenant_rule_of(model: type[models.Model]) -> TenantRule | None:
    """The rule that ``model`` or a model it inherits from declared, or None if it has none."""
    return next((_RULES[base] for base in model.__mro__ if base in _RULES), None)


@contextmanager
def unscoped_queries() -> Iterator[None]:
    """Let unscoped queries run inside the block, for Django code that we cannot change (admin)."""
    token = _everything_allowed.set(True)
    try:
        yield
    finally:
        _everything_allowed.reset(token)


class TenantQuery(sql.Query):
    """SQL that refuses to be compiled until somebody said whose rows are meant.

    All that runs a query, and every use as a subquery, compiles it; a check at this one place
    cannot be walked around by a queryset method that we forgot.
    """

    is_scoped: bool = False

    def get_compiler(self, *args: Any, **kwargs: Any) -> Any:
        """Hand out a compiler for a scoped query only (Django calls this before any SQL)."""
        self.require_scope()
        return super().get_compiler(*args, **kwargs)

    def require_scope(self, act: str = "query") -> None:
        """Raise unless the query is scoped or unscoped queries are allowed here."""
        if not self.is_scoped and not _everything_allowed.get():
            raise UnscopedQueryError(cast("type[models.Model]", self.model), act)


class TenantScopedQuerySet(models.QuerySet[M_co], Generic[M_co]):
    """A query set over rows of tenants; see the module's words."""

    def __init__(
        self,
        model: type[models.Model] | None = None,
        query: sql.Query | None = None,
        using: str | None = None,
        hints: dict[str, models.Model] | None = None,
    ) -> None:
        """Start from a query that knows whether it is scoped."""
        if query is None and model is not None:
            query = TenantQuery(model)
        super().__init__(model, query, using, hints)

    def visible_to(self, viewer: Viewer, permission: Permission | None = None) -> Self:
        """Narrow to the rows of tenants in which ``viewer`` holds the permission.

        Args:
            viewer: who looks.
            permission: the verb that counts; by default the one the model declared.
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
        """Update as Django does, in a scope."""
        self._require_scope("update")
        return super().update(**kwargs)

    def delete(self) -> tuple[int, dict[str, int]]:
        """Delete as Django does, in a scope."""
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
        # "Mine or everybody's" would be everybody's: both halves must be scoped.
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
    """The manager of rows that belong to tenants; its bare use fails loudly."""

    _queryset_class: type[models.QuerySet[Any]] = TenantScopedQuerySet

    def __init__(
        self, tenant_path: str = "", permission: Permission = Permission.VIEW_JOBS
    ) -> None:
        """Declare how rows belong to tenants.

        Args:
            tenant_path: lookup from a row to its tenant's id. Django makes managers of related
                rows without it; those use what the model declared.
            permission: what a viewer must be allowed in the tenant to see its rows.
        """
        super().__init__()
        self.tenant_path = tenant_path
        self.permission = permission

    def contribute_to_class(self, cls: type[models.Model], name: str) -> None:
        """Remember the rule when Django attaches the manager to its model."""
        super().contribute_to_class(cls, name)
        if self.tenant_path:
            _RULES[cls] = TenantRule(path=self.tenant_path, permission=self.permission)

    def get_queryset(self) -> TenantScopedQuerySet[M_co]:
        """A query set without a scope, or with its owner's for rows reached from their owner."""
        queryset = cast("TenantScopedQuerySet[M_co]", super().get_queryset())
        return queryset.unscoped() if self._is_of_owner() else queryset

    def visible_to(
        self, viewer: Viewer, permission: Permission | None = None
    ) -> TenantScopedQuerySet[M_co]:
        """The rows that ``viewer`` may see; see ``TenantScopedQuerySet.visible_to``."""
        return self.get_queryset().visible_to(viewer, permission)

    def unscoped(self) -> TenantScopedQuerySet[M_co]:
        """The rows of all tenants; services, tasks and snapshots only."""
        return self.get_queryset().unscoped()

    def _is_of_owner(self) -> bool:
        # Set by Django on managers of related rows only (tenant.memberships, job.attempts).
        relation = getattr(self, "field", None)
        rule = tenant_rule_of(self.model) if relation is not None else None
        if relation is None or rule is None:
            return False
        first_step = rule.path.split("__")[0]
        return first_step in (relation.name, relation.attname)


def _memberships(user_id: int) -> models.QuerySet[Any, Any]:
    rows = cast("Any", apps.get_model("tenants", "Membership")).objects.unscoped()
    found = rows.filter(user_id=user_id)
    # Whether there is a moment is all that is asked of it.
    return found.values_list(  # type: ignore[no-any-return]
        "tenant_id", "role", "tenant__name", "tenant__archived_at"
    )


_MEMBERSHIPS: Final = Statement(_memberships)


def viewer_of(user: "User", token: "ApiToken | None" = None) -> Viewer:
    """Everything that decides what ``user`` may see, read in one query (two for admins).

    Args:
        user: an active, authenticated user.
        token: the token the request came with; it can only narrow what the user may do.
    """
    bound = token.tenant_id if token is not None else None
    rows = _MEMBERSHIPS.rows(user.pk)
    names = {tenant_id: name for tenant_id, _, name, _ in rows}
    archived = {tenant_id for tenant_id, _, _, archived_at in rows if archived_at}
    if user.is_cluster_admin:
        tenants = cast("Any", apps.get_model("tenants", "Tenant")).objects.unscoped()
        for tenant_id, name, archived_at in tenants.values_list("id", "name", "archived_at"):
            names[tenant_id] = name
            archived |= {tenant_id} if archived_at else set()
    return Viewer(
        user_id=user.pk,
        username=user.username,
        is_cluster_admin=user.is_cluster_admin,
        roles={tid: Role(role) for tid, role, *_ in rows if bound in (None, tid)},
        tenant_names={tid: name for tid, name in names.items() if bound in (None, tid)},
        archived_ids=frozenset(archived),
        # A scope that this version does not know allows nothing.
        scopes=None if token is None else frozenset(s for s in Scope if s in token.scopes),
        bound_tenant_id=bound,
        token_prefix="" if token is None else token.prefix,
    )
