"""Aliases of device types, set by cluster admins."""

import re
from typing import Final

from django.db import IntegrityError, transaction

from scheduling.clusters.models import Device, DeviceAlias
from scheduling.core.messages import sentence
from tenants.audit import record
from tenants.errors import DuplicateError, FieldError, InvalidError, NotFoundError
from tenants.roles import Permission
from tenants.viewers import Viewer

MOST_ALIASES: Final = 1000
_ALIAS: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,59}")


def create_device_alias(*, viewer: Viewer, alias: str, device_type: str) -> DeviceAlias:
    """Create an alias of a device type of the cluster; jobs submitted from now on use it.

    Args:
        viewer: a cluster admin.
        alias: the name in documents; case does not matter.
        device_type: a device type of the cluster.

    Raises:
        InvalidError: values are not valid; the error lists all faults.
        DuplicateError: the type has this alias.
    """
    viewer.require(Permission.MANAGE_NODES, what="device types")
    InvalidError.raise_if(_faults(alias, device_type))
    row = DeviceAlias(alias=alias.lower(), device_type=device_type, created_by_id=viewer.user_id)
    try:
        with transaction.atomic():
            row.save(force_insert=True)
            record(actor=viewer, action="device_alias.create", obj=row, after=shown(row))
    except IntegrityError:
        raise DuplicateError(
            sentence("alias-exists", alias=alias, device_type=device_type),
            field="alias",
            value=alias,
        ) from None
    return row


@transaction.atomic
def delete_device_alias(*, viewer: Viewer, alias_id: int) -> None:
    """Delete an alias; the types of submitted jobs do not change.

    Raises:
        NotFoundError: the alias is unknown.
    """
    viewer.require(Permission.MANAGE_NODES, what="device types")
    row = DeviceAlias.objects.filter(pk=alias_id).first()
    if row is None:
        raise NotFoundError(sentence("no-such-alias"), field="id", value=alias_id)
    record(actor=viewer, action="device_alias.delete", obj=row, before=shown(row))
    row.delete()


def shown(row: DeviceAlias) -> dict[str, object]:
    """Return the values of an alias for the audit."""
    return {"alias": row.alias, "device_type": row.device_type}


def _faults(alias: str, device_type: str) -> list[FieldError]:
    types = set(Device.objects.filter(retired_at=None).values_list("device_type", flat=True))
    found = []
    if not _ALIAS.fullmatch(alias):
        found.append(
            FieldError(
                field="alias",
                value=alias,
                message=sentence("not-an-alias"),
                remedy=sentence("write-alias"),
            )
        )
    elif alias.lower() in {kind.lower() for kind in types}:
        found.append(
            FieldError(
                field="alias",
                value=alias,
                message=sentence("alias-is-a-type"),
                remedy=sentence("choose-another-name"),
            )
        )
    if device_type not in types:
        found.append(
            FieldError(
                field="device_type",
                value=device_type,
                message=sentence("no-such-type", device_type=device_type),
                remedy=sentence("choices", names=", ".join(sorted(types)) or sentence("none-yet")),
            )
        )
    if DeviceAlias.objects.count() >= MOST_ALIASES:
        found.append(
            FieldError(
                field="alias",
                value=alias,
                message=sentence("too-many-aliases", most=MOST_ALIASES),
                remedy=sentence("delete-unused-aliases"),
            )
        )
    return found
