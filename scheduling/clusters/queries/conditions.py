"""Conditions of GPUs at the last probe of a node, with their actions."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scheduling.clusters.models import ClusterRules, Device
from scheduling.core.canaries import CanarySettings, settings_of
from scheduling.core.messages import sentence
from tessera.hardware import DEFAULT_ACTIONS, NOTE, Condition


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionRow:
    """A condition of a device or, without a device, of its node.

    Attributes:
        device: number of the device on its node, or None.
        action: ``note``, ``quarantine`` or ``cordon``.
        text: the condition as text.
        detail: figures and texts of the driver.
    """

    device: int | None
    code: str
    action: str
    text: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRow:
    """Identity of a GPU, and its facts at the last probe that found it.

    Attributes:
        index: number of the device on its node; ``driver_index`` is the one of the driver.
    """

    index: int
    uuid: str
    model: str
    serial: str
    pci_address: str
    driver_index: int | None


def canary_settings() -> CanarySettings:
    """Return the settings of canary jobs in force."""
    return settings_of(ClusterRules.objects.values_list("canary", flat=True).first() or {})


def condition_actions() -> dict[str, str]:
    """Return the action of each condition: the default, or the choice of an admin."""
    chosen = ClusterRules.objects.values_list("condition_actions", flat=True).first()
    return {**DEFAULT_ACTIONS, **(chosen or {})}


def condition_rows(
    conditions: Iterable[Condition], devices: Sequence[Device]
) -> tuple[ConditionRow, ...]:
    """Return conditions by device, without those of GPUs that have no row."""
    found = list(conditions)
    if not found:
        return ()
    actions = condition_actions()
    by_uuid = {device.uuid: [device.index] for device in devices if device.uuid}
    by_address: dict[str, list[int]] = defaultdict(list)
    for device in devices:
        if device.pci_address:  # MIG instances have the address of their GPU
            by_address[device.pci_address].append(device.index)
    rows = []
    for one in found:
        if not (one.uuid or one.pci_address):
            rows.append(_row(one, None, actions))
        numbers = by_uuid.get(one.uuid) or by_address.get(one.pci_address, [])
        rows += [_row(one, number, actions) for number in numbers]
    return tuple(dict.fromkeys(rows))


def _row(one: Condition, number: int | None, actions: Mapping[str, str]) -> ConditionRow:
    return ConditionRow(
        device=number,
        code=one.code,
        action=actions.get(one.code, NOTE),
        text=sentence(f"condition-{one.code}") if one.code in DEFAULT_ACTIONS else one.code,
        detail=one.detail,
    )


def gpu_labels() -> dict[tuple[int, int], tuple[str, str]]:
    """Return node name and UUID of each GPU by node ID and device number."""
    rows = Device.objects.filter(is_gpu=True, retired_at=None, node__removed_at=None)
    found = rows.order_by("node__name", "index").values_list(
        "node_id", "index", "node__name", "uuid"
    )
    return {(node_id, index): (name, uuid) for node_id, index, name, uuid in found}


def gpu_rows(devices: Iterable[Device]) -> tuple[GpuRow, ...]:
    """Return the GPUs among the devices of a node."""
    return tuple(
        GpuRow(
            index=device.index,
            uuid=device.uuid,
            model=device.model,
            serial=device.serial,
            pci_address=device.pci_address,
            driver_index=device.driver_index,
        )
        for device in devices
        if device.is_gpu
    )
