"""Device types of the cluster with their names, for pages and REST."""

from dataclasses import dataclass

from django.db.models import Count

from scheduling.clusters.models import Device, DeviceAlias
from scheduling.core.device_types import automatic_aliases
from tenants.roles import Permission
from tenants.viewers import Viewer


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasRow:
    """A name that an admin gave to a device type."""

    id: int
    alias: str
    device_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTypeRow:
    """A device type with its names.

    Attributes:
        aliases: names that admins set.
        automatic: short names that follow from the name of the type, where no admin set them.
    """

    device_type: str
    devices: int
    nodes: int
    aliases: tuple[AliasRow, ...]
    automatic: tuple[str, ...]


def list_aliases(viewer: Viewer) -> tuple[AliasRow, ...]:
    """Return the aliases that admins set, in one query."""
    viewer.require(Permission.VIEW_CLUSTER, what="device types")
    return tuple(
        AliasRow(id=pk, alias=alias, device_type=kind)
        for pk, alias, kind in DeviceAlias.objects.values_list("id", "alias", "device_type")
    )


def list_device_types(viewer: Viewer) -> tuple[DeviceTypeRow, ...]:
    """Return the device types with their names, those without devices last, in two queries."""
    aliases = list_aliases(viewer)
    set_names = {row.alias for row in aliases}
    rows = Device.objects.filter(retired_at=None).order_by("device_type").values("device_type")
    counts = {
        row["device_type"]: (row["devices"], row["nodes"])
        for row in rows.annotate(devices=Count("id"), nodes=Count("node", distinct=True))
    }
    gone = sorted({row.device_type for row in aliases} - counts.keys())
    return tuple(
        DeviceTypeRow(
            device_type=kind,
            devices=counts.get(kind, (0, 0))[0],
            nodes=counts.get(kind, (0, 0))[1],
            aliases=tuple(row for row in aliases if row.device_type == kind),
            automatic=tuple(sorted(automatic_aliases(kind) - set_names - {kind.lower()})),
        )
        for kind in (*counts, *gone)
    )
