"""Logins of tenants at image registries: stored encrypted, used for pulls, and never shown."""

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Final

from django.db import transaction

from scheduling.clusters.models import RegistryLogin
from scheduling.core.messages import sentence
from scheduling.secrets import seal
from tenants.audit import record
from tenants.errors import ConflictError, FieldError, InvalidError, NotFoundError
from tenants.roles import Permission
from tenants.viewers import Viewer

DOCKER_HUB: Final = "docker.io"
MOST_LOGINS: Final = 50
_LONGEST_PASSWORD: Final = 8192  # tokens of registries have thousands of characters
_REGISTRY: Final = re.compile(
    r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)*"
    r"(?::[0-9]{1,5})?"
)
_USERNAME: Final = re.compile(r"[!-9;-~]{1,255}")
"""Printable ASCII without the colon, which separates it from the password."""


def registry_of(image: str) -> tuple[str, str]:
    """Return the registry of an image and the rest of the name; Docker Hub without a host."""
    host, separator, rest = image.partition("/")
    if not separator or not ("." in host or ":" in host or host == "localhost"):
        return DOCKER_HUB, image if separator else f"library/{image}"
    return host.lower(), rest


def list_registry_logins(viewer: Viewer) -> Sequence[RegistryLogin]:
    """Return the logins that a viewer may manage, by ID."""
    found = RegistryLogin.objects.visible_to(viewer).select_related("tenant")
    return list(found.defer("sealed").order_by("pk"))


@transaction.atomic
def set_registry_login(
    *,
    viewer: Viewer,
    tenant_id: int,
    registry: str,
    username: str,
    password: str,
    now: datetime,
) -> RegistryLogin:
    """Create or replace the login of a tenant at a registry. Running pulls are not affected.

    Args:
        viewer: a lead of the tenant, or a cluster admin.
        tenant_id: the tenant whose jobs use it.
        registry: host of the registry, with a port if needed; ``docker.io`` for Docker Hub.
        username: name of the account, without a colon.
        password: password or token.
        now: the current time.

    Raises:
        ForbiddenError, NotFoundError: the viewer may not manage the logins.
        InvalidError: values are not valid; the error lists all faults, without the password.
        ConflictError: the maximum number of logins exists.
    """
    viewer.require(Permission.MANAGE_HOOKS, tenant_id, what="the registry logins of the tenant")
    InvalidError.raise_if(_faults(registry, username, password))
    rows = RegistryLogin.objects.unscoped().filter(tenant_id=tenant_id)
    before = rows.filter(registry=registry).first()
    if before is None and rows.count() >= MOST_LOGINS:
        raise ConflictError(
            sentence("most-registry-logins", most=MOST_LOGINS),
            field="registry",
            value=registry,
            remedy=sentence("delete-a-login"),
        )
    login, _ = RegistryLogin.objects.unscoped().update_or_create(
        tenant_id=tenant_id,
        registry=registry,
        defaults={"username": username, "sealed": seal(password), "changed_at": now},
    )
    record(
        actor=viewer,
        action="registry_login.set",
        obj=login,
        before={"username": before.username} if before else None,
        after={"username": username},
        tenant=tenant_id,
    )
    return login


@transaction.atomic
def delete_registry_login(*, viewer: Viewer, login_id: int) -> None:
    """Delete the login of a tenant at a registry; later pulls are anonymous.

    Raises:
        NotFoundError: the viewer may manage no login with this ID.
    """
    login = RegistryLogin.objects.unscoped().filter(pk=login_id).first()
    if login is None or not viewer.can(Permission.MANAGE_HOOKS, login.tenant_id):
        raise NotFoundError(sentence("no-registry-login"), field="id", value=login_id)
    record(actor=viewer, action="registry_login.delete", obj=login, tenant=login.tenant_id)
    login.delete()


def sealed_logins(tenant_ids: Collection[int]) -> Mapping[tuple[int, str], tuple[str, bytes]]:
    """Return username and encrypted password by tenant and registry, for the node service."""
    rows = RegistryLogin.objects.unscoped().filter(tenant_id__in=tenant_ids)
    return {
        (tenant, registry): (username, bytes(sealed))
        for tenant, registry, username, sealed in rows.values_list(
            "tenant_id", "registry", "username", "sealed"
        )
    }


def _faults(registry: object, username: object, password: object) -> list[FieldError]:
    faults = []
    if not (isinstance(registry, str) and len(registry) <= 255 and _REGISTRY.fullmatch(registry)):
        faults.append(
            FieldError(
                field="registry",
                value=registry,
                message=sentence("not-registry"),
                remedy=sentence("write-registry"),
            )
        )
    if not (isinstance(username, str) and _USERNAME.fullmatch(username)):
        faults.append(
            FieldError(
                field="username",
                value=username,
                message=sentence("not-registry-user"),
                remedy=sentence("write-registry-user"),
            )
        )
    is_text = isinstance(password, str) and password.isprintable()
    if not is_text or not 0 < len(str(password)) <= _LONGEST_PASSWORD:
        faults.append(
            FieldError(
                field="password",
                value=None,
                message=sentence("not-registry-password"),
                remedy=sentence("write-registry-password", most=_LONGEST_PASSWORD),
            )
        )
    return faults
