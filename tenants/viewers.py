"""The viewer of a request: a frozen value that checks permissions without queries."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Self

from tenants.errors import ForbiddenError, NotFoundError
from tenants.messages import sentence
from tenants.roles import (
    CLUSTER_ONLY,
    EVERYBODY,
    FROZEN_BY_ARCHIVE,
    Permission,
    Role,
    Scope,
    role_allows,
    scopes_allow,
)
from tessera.messages import Sentence, plain

ANOTHER_TENANT = sentence("another-tenant")
"""Text that replaces a name which the viewer may not see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    """The caller of a request, with all rights.

    Attributes:
        user_id: row of the user; None for the system itself (commands, start-up).
        username: name for the audit and for pages.
        is_cluster_admin: has all rights, in all tenants.
        roles: role in each tenant the user belongs to, by tenant id.
        tenant_names: slugs of the tenants the viewer may see, by id.
        archived_ids: archived ones, which accept no new work.
        scopes: scopes of the token; None without a token (session, basic auth, system).
        bound_tenant_id: the only tenant of this token; None for no limit.
        token_prefix: public part of the token, for the audit; empty without one.
    """

    user_id: int | None
    username: str
    is_cluster_admin: bool = False
    roles: Mapping[int, Role] = field(default_factory=dict, hash=False)
    tenant_names: Mapping[int, str] = field(default_factory=dict, hash=False)
    archived_ids: frozenset[int] = frozenset()
    scopes: frozenset[Scope] | None = None
    bound_tenant_id: int | None = None
    token_prefix: str = ""

    def __post_init__(self) -> None:
        """Freeze the mappings, so that the rights of a viewer cannot change."""
        object.__setattr__(self, "roles", MappingProxyType(dict(self.roles)))
        object.__setattr__(self, "tenant_names", MappingProxyType(dict(self.tenant_names)))

    @classmethod
    def system(cls, name: str) -> Self:
        """Return the viewer of a command or of the startup, named ``name`` in the audit."""
        return cls(user_id=None, username=name, is_cluster_admin=True)

    def can(self, permission: Permission, tenant_id: int | None = None) -> bool:
        """Return whether the viewer has ``permission`` in a tenant.

        Args:
            permission: the permission.
            tenant_id: the tenant of the row; None for the cluster itself (nodes, users,
                audit rows of no tenant).
        """
        if not scopes_allow(self.scopes, permission):
            return False
        if tenant_id is None and permission in EVERYBODY:
            return True
        if self.bound_tenant_id is not None and tenant_id != self.bound_tenant_id:
            return False
        if tenant_id in self.archived_ids and permission in FROZEN_BY_ARCHIVE:
            return False
        if self.is_cluster_admin:
            return True
        return tenant_id is not None and role_allows(self.roles.get(tenant_id), permission)

    def can_somewhere(self, permission: Permission) -> bool:
        """Return whether ``can`` holds in any tenant or for the cluster."""
        return self.can(permission) or any(
            self.can(permission, tenant_id) for tenant_id in self._known_ids()
        )

    def can_stop(self, tenant_id: int, owner_id: int | None) -> bool:
        """Return whether the viewer may stop a job of ``owner_id`` in ``tenant_id``."""
        if self.can(Permission.STOP_ANY_JOB, tenant_id):
            return True
        is_own = owner_id is not None and owner_id == self.user_id
        return is_own and self.can(Permission.STOP_OWN_JOB, tenant_id)

    def tenant_ids(self, permission: Permission) -> frozenset[int] | None:
        """Return the tenants in which ``can(permission, id)`` holds; None means every tenant.

        Only an unbound cluster admin gets None, and only for permissions that an archived tenant
        does not freeze.
        """
        if not scopes_allow(self.scopes, permission):
            return frozenset()
        is_everywhere = self.is_cluster_admin and self.bound_tenant_id is None
        if is_everywhere and permission not in FROZEN_BY_ARCHIVE:
            return None
        return frozenset(
            tenant_id for tenant_id in self._known_ids() if self.can(permission, tenant_id)
        )

    def role_in(self, tenant_id: int) -> Role | None:
        """Return the viewer's role by membership; a cluster admin need not have one."""
        if self.bound_tenant_id not in (None, tenant_id):
            return None
        return self.roles.get(tenant_id)

    def name_of(self, tenant_id: int) -> str:
        """Return the tenant's name, or "another tenant" if the viewer may not see it."""
        if self.bound_tenant_id not in (None, tenant_id):
            return ANOTHER_TENANT
        return self.tenant_names.get(tenant_id, ANOTHER_TENANT)

    def require(
        self, permission: Permission, tenant_id: int | None = None, *, what: str = "this"
    ) -> None:
        """Require a permission.

        Args:
            permission: the permission.
            tenant_id: as in ``can``.
            what: label of the object in the message (``the tenant``): a message, or a text of
                the catalogue.

        Raises:
            NotFoundError: the tenant is not visible to the viewer.
            ForbiddenError: the tenant is visible, but the permission is missing.
        """
        if self.can(permission, tenant_id):
            return
        label = what if isinstance(what, Sentence) else plain(what)
        if tenant_id is not None and not self.can(Permission.VIEW_TENANT, tenant_id):
            raise NotFoundError(sentence("not-found-or-hidden", what=label))
        raise ForbiddenError(
            sentence("forbidden-for", what=label),
            field="permission",
            value=str(permission),
            remedy=self._remedy(permission, tenant_id),
        )

    def _remedy(self, permission: Permission, tenant_id: int | None) -> str:
        if tenant_id in self.archived_ids and permission in FROZEN_BY_ARCHIVE:
            return sentence("tenant-is-archived")
        if replace(self, scopes=None).can(permission, tenant_id):
            return sentence("use-token-with-scopes")
        if permission in CLUSTER_ONLY or tenant_id is None:
            return sentence("ask-cluster-admin")
        return sentence("ask-lead-tenant")

    def _known_ids(self) -> frozenset[int]:
        known = frozenset(self.tenant_names) | frozenset(self.roles)
        if self.bound_tenant_id is None:
            return known
        return known & {self.bound_tenant_id}
