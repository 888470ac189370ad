"""The ``extras.hivedScheduler`` part of an OpenPAI job: priority and devices by role."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any, Final

from portal.api.importers.reading import Section

PRIORITY_CLASSES: Final = ("crit", "prod", "test")
_OPPORTUNISTIC: Final = "oppo"


@dataclass(frozen=True, slots=True, kw_only=True)
class HivedRole:
    """What it says about one role.

    Attributes:
        sku_type: device type; None: any.
        sku_number: devices of each instance; None: not said.
        pinned: the pinned cell that is asked for; None: none.
        group: name of the affinity group; None: none.
    """

    sku_type: str | None = None
    sku_number: int | None = None
    pinned: str | None = None
    group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hived:
    """What it says about the job: fields of the native spec, and the roles."""

    standing: Mapping[str, Any]
    roles: Mapping[str, HivedRole] = field(default_factory=dict)


def read_hived(section: Section, role_names: Set[str]) -> Hived:
    """Read the part; an absent one means priority class test, as OpenPAI does."""
    standing = _standing(section)
    roles = {}
    for name, value, place in section.section("taskRoles").entries():
        part = Section(value, place, section.report)
        if name not in role_names:
            place.refuse(name, "is no task role of this job.", "Remove it.", "conflict")
        roles[name] = _role(part)
        part.finish()
    _check_groups(roles, role_names, section)
    section.finish()
    return Hived(standing=standing, roles=roles)


def _standing(section: Section) -> dict[str, Any]:
    place = section.at("jobPriorityClass")
    name = section.text("jobPriorityClass") or "test"
    if name == _OPPORTUNISTIC:
        return {"class": "opportunistic"}
    if name not in PRIORITY_CLASSES:
        words = ", ".join((*PRIORITY_CLASSES, _OPPORTUNISTIC))
        place.refuse(name, "is not a priority class.", f"Write one of {words}.")
        return {}
    return {"priority": name}


def _role(part: Section) -> HivedRole:
    part.rename("gpuType", "skuType")
    part.rename("reservationId", "pinnedCellId")
    place = part.place
    sku_type, pinned = part.text("skuType"), part.text("pinnedCellId")
    if sku_type and pinned:
        place.child("pinnedCellId").refuse(
            pinned, "excludes skuType.", "Keep skuType or pinnedCellId.", "conflict"
        )
    # The portal of OpenPAI writes skuNum, while its server reads skuNumber.
    number, other = part.integer("skuNum", 1, 256), part.integer("skuNumber", 1, 256)
    if number and other and number != other:
        place.child("skuNumber").refuse(
            other, f"contradicts skuNum {number}.", "Keep one of them.", "conflict"
        )
    group = part.text("affinityGroupName")
    for key, words in (
        ("gangReleaseEnable", "Devices of a gang are always released together."),
        ("lazyPreemptionEnable", "A preempted job leaves after its grace period."),
        ("ignoreK8sSuggestedNodes", "There is no other scheduler that suggests nodes."),
    ):
        part.lacks(key, words, needed=False)
    return HivedRole(
        sku_type=sku_type or None, sku_number=number or other, pinned=pinned or None, group=group
    )


def _check_groups(roles: Mapping[str, HivedRole], role_names: Set[str], section: Section) -> None:
    """Roles of one affinity group agree; several groups become one gang here."""
    first: dict[str, tuple[str, HivedRole]] = {}
    for name, role in roles.items():
        if role.group is None:
            continue
        other_name, other = first.setdefault(role.group, (name, role))
        if (other.sku_type, other.pinned) != (role.sku_type, role.pinned):
            section.at("taskRoles").child(name).refuse(
                role.group,
                f"is also the affinity group of {other_name}, with another type or pinned cell.",
                "Give both the same skuType and pinnedCellId.",
                "conflict",
            )
    groups = {role.group for role in roles.values()}
    in_one = len(groups) == 1 and set(roles) == set(role_names)
    if groups - {None} and not in_one:
        section.report.warn(
            section.at("taskRoles"), "has several affinity groups; the job is one gang here."
        )
