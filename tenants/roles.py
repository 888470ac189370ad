"""Roles, scopes and permissions: pure functions over three tables."""

from collections.abc import Iterable
from enum import StrEnum, unique
from types import MappingProxyType
from typing import Final


@unique
class Role(StrEnum):
    """The role of a person in one tenant; each role includes the ones before it."""

    VIEWER = "viewer"
    MEMBER = "member"
    LEAD = "lead"


@unique
class Scope(StrEnum):
    """A scope of a token; a token never allows more than its owner's role."""

    JOBS_READ = "jobs:read"
    JOBS_WRITE = "jobs:write"
    VC_ADMIN = "vc:admin"
    NODES_ADMIN = "nodes:admin"
    AUDIT_READ = "audit:read"
    TENANT_ADMIN = "tenant:admin"


@unique
class Permission(StrEnum):
    """A permission that code checks; only this module compares roles and scopes."""

    VIEW_CLUSTER = "view_cluster"
    VIEW_TENANT = "view_tenant"
    VIEW_MEMBERS = "view_members"
    VIEW_JOBS = "view_jobs"
    SUBMIT_JOBS = "submit_jobs"
    STOP_OWN_JOB = "stop_own_job"
    STOP_ANY_JOB = "stop_any_job"
    EDIT_PRIORITIES = "edit_priorities"
    SET_CAPS = "set_caps"
    MANAGE_MEMBERS = "manage_members"
    READ_AUDIT = "read_audit"
    EDIT_VC = "edit_vc"
    EDIT_PRIORITY_CLASSES = "edit_priority_classes"
    MANAGE_NODES = "manage_nodes"
    MANAGE_TENANTS = "manage_tenants"
    MANAGE_USERS = "manage_users"
    GRANT_ADMIN = "grant_admin"
    ISSUE_TOKENS = "issue_tokens"
    ANNOUNCE = "announce"
    MANAGE_HOOKS = "manage_hooks"


_VIEWER: Final = frozenset({Permission.VIEW_TENANT, Permission.VIEW_MEMBERS, Permission.VIEW_JOBS})
_MEMBER: Final = _VIEWER | {Permission.SUBMIT_JOBS, Permission.STOP_OWN_JOB}
_LEAD: Final = _MEMBER | {
    Permission.STOP_ANY_JOB,
    Permission.EDIT_PRIORITIES,
    Permission.SET_CAPS,
    Permission.MANAGE_MEMBERS,
    Permission.READ_AUDIT,
    Permission.MANAGE_HOOKS,
}

EVERYBODY: Final = frozenset({Permission.VIEW_CLUSTER, Permission.ISSUE_TOKENS})
"""Permissions of every signed-in user, with or without a tenant."""

PERMISSIONS: Final = MappingProxyType(
    {Role.VIEWER: _VIEWER, Role.MEMBER: _MEMBER, Role.LEAD: _LEAD}
)
"""Permissions of each role in its own tenant; a cluster admin has all."""

CLUSTER_ONLY: Final = frozenset(Permission) - _LEAD - EVERYBODY
"""Permissions that no role of a tenant has."""

FROZEN_BY_ARCHIVE: Final = frozenset(
    {
        Permission.SUBMIT_JOBS,
        Permission.EDIT_PRIORITIES,
        Permission.SET_CAPS,
        Permission.MANAGE_MEMBERS,
    }
)
"""Permissions suspended in an archived tenant; viewing, stopping and returning devices remain."""

_ANY: Final = frozenset(Scope)
_NONE: Final[frozenset[Scope]] = frozenset()

SCOPES: Final = MappingProxyType(
    {
        Permission.VIEW_CLUSTER: _ANY,
        Permission.VIEW_TENANT: _ANY,
        Permission.VIEW_MEMBERS: _ANY,
        # A person who may submit may also see the result.
        Permission.VIEW_JOBS: frozenset({Scope.JOBS_READ, Scope.JOBS_WRITE}),
        Permission.SUBMIT_JOBS: frozenset({Scope.JOBS_WRITE}),
        Permission.STOP_OWN_JOB: frozenset({Scope.JOBS_WRITE}),
        Permission.STOP_ANY_JOB: frozenset({Scope.JOBS_WRITE}),
        Permission.EDIT_PRIORITIES: frozenset({Scope.JOBS_WRITE}),
        Permission.SET_CAPS: frozenset({Scope.TENANT_ADMIN}),
        Permission.MANAGE_MEMBERS: frozenset({Scope.TENANT_ADMIN}),
        Permission.READ_AUDIT: frozenset({Scope.AUDIT_READ}),
        Permission.EDIT_VC: frozenset({Scope.VC_ADMIN}),
        Permission.EDIT_PRIORITY_CLASSES: frozenset({Scope.VC_ADMIN}),
        Permission.MANAGE_NODES: frozenset({Scope.NODES_ADMIN}),
        Permission.MANAGE_TENANTS: frozenset({Scope.TENANT_ADMIN}),
        Permission.MANAGE_USERS: frozenset({Scope.TENANT_ADMIN}),
        Permission.ANNOUNCE: frozenset({Scope.TENANT_ADMIN}),
        Permission.MANAGE_HOOKS: frozenset({Scope.TENANT_ADMIN}),
        # A stolen token must not create more tokens or more admins.
        Permission.GRANT_ADMIN: _NONE,
        Permission.ISSUE_TOKENS: _NONE,
    }
)
"""Scopes that grant a permission to a token (one is enough); empty: not available to tokens."""

SCOPE_NEEDS: Final = MappingProxyType(
    {
        Scope.JOBS_READ: Permission.VIEW_JOBS,
        Scope.JOBS_WRITE: Permission.SUBMIT_JOBS,
        Scope.VC_ADMIN: Permission.EDIT_VC,
        Scope.NODES_ADMIN: Permission.MANAGE_NODES,
        Scope.AUDIT_READ: Permission.READ_AUDIT,
        Scope.TENANT_ADMIN: Permission.MANAGE_MEMBERS,
    }
)
"""The permission that a person needs to grant a scope."""


def role_allows(role: Role | None, permission: Permission) -> bool:
    """Return whether ``role`` in a tenant allows ``permission`` there; None is not a member."""
    if permission in EVERYBODY:
        return True
    return role is not None and permission in PERMISSIONS[role]


def scopes_allow(scopes: frozenset[Scope] | None, permission: Permission) -> bool:
    """Return whether a token's ``scopes`` cover ``permission``; None is an unlimited session."""
    return scopes is None or not scopes.isdisjoint(SCOPES[permission])


def grantable_scopes(*, is_cluster_admin: bool, roles: Iterable[Role]) -> frozenset[Scope]:
    """Return the scopes that a person with ``roles`` may grant to a token of their own."""
    held = list(roles)
    return frozenset(
        scope
        for scope, permission in SCOPE_NEEDS.items()
        if is_cluster_admin or any(role_allows(role, permission) for role in held)
    )
