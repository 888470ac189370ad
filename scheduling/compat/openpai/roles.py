"""The task roles of an OpenPAI job: resources, HiveD settings, ports and commands."""

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final

from scheduling.compat.openpai.messages import phrase
from scheduling.compat.openpai.prerequisites import Prerequisites, read_commands
from scheduling.compat.openpai.templates import referred_secrets, render
from scheduling.compat.reading import Section
from scheduling.compat.shared import BASH_PRELUDE
from scheduling.core.jobspec.errors import RefusalError
from scheduling.core.jobspec.scalars import MIB, read_command
from tessera.messages import Listing

PRIORITY_CLASSES: Final = ("crit", "prod", "test")
_OPPORTUNISTIC: Final = "oppo"


@dataclass(frozen=True, slots=True, kw_only=True)
class HivedRole:
    """The HiveD settings of one role.

    Attributes:
        sku_type: device type; None for any.
        sku_number: devices of each instance; None if not given.
        pinned: requested pinned cell; None if not given.
        group: name of the affinity group; None if not given.
    """

    sku_type: str | None = None
    sku_number: int | None = None
    pinned: str | None = None
    group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hived:
    """The HiveD settings of a job: native fields of the job, and settings by role."""

    job_fields: Mapping[str, Any]
    roles: Mapping[str, HivedRole] = field(default_factory=dict)


def read_hived(section: Section, role_names: Set[str]) -> Hived:
    """Parse the HiveD settings; without them the priority class is test, as in OpenPAI."""
    job_fields = _job_fields(section)
    roles = {}
    for name, value, place in section.section("taskRoles").entries():
        part = Section(value, place, section.report)
        if name not in role_names:
            place.refuse(name, phrase("openpai-not-a-role"), phrase("import-remove"), "conflict")
        roles[name] = _role(part)
        part.finish()
    _check_groups(roles, role_names, section)
    section.finish()
    return Hived(job_fields=job_fields, roles=roles)


def _job_fields(section: Section) -> dict[str, Any]:
    place = section.at("jobPriorityClass")
    name = section.text("jobPriorityClass") or "test"
    if name == _OPPORTUNISTIC:
        return {"class": "opportunistic"}
    if name not in PRIORITY_CLASSES:
        names = Listing((*PRIORITY_CLASSES, _OPPORTUNISTIC))
        place.refuse(
            name, phrase("openpai-not-a-class"), phrase("openpai-write-one-of", names=names)
        )
        return {}
    return {"priority": name}


def _role(part: Section) -> HivedRole:
    part.rename("gpuType", "skuType")
    part.rename("reservationId", "pinnedCellId")
    place = part.place
    sku_type, pinned = part.text("skuType"), part.text("pinnedCellId")
    if sku_type and pinned:
        place.child("pinnedCellId").refuse(
            pinned,
            phrase("openpai-pinned-and-type"),
            phrase("openpai-keep-type-or-pinned"),
            "conflict",
        )
    # OpenPAI's portal writes skuNum, but its server reads skuNumber.
    number, other = part.integer("skuNum", 1, 256), part.integer("skuNumber", 1, 256)
    if number and other and number != other:
        place.child("skuNumber").refuse(
            other,
            phrase("openpai-sku-differs", number=number),
            phrase("import-keep-one-of-them"),
            "conflict",
        )
    group = part.text("affinityGroupName")
    for key, words in (
        ("gangReleaseEnable", phrase("openpai-gang-release")),
        ("lazyPreemptionEnable", phrase("openpai-lazy-preemption")),
        ("ignoreK8sSuggestedNodes", phrase("openpai-suggested-nodes")),
    ):
        part.leave_out(key, words, needed=False)
    return HivedRole(
        sku_type=sku_type or None, sku_number=number or other, pinned=pinned or None, group=group
    )


def _check_groups(roles: Mapping[str, HivedRole], role_names: Set[str], section: Section) -> None:
    """Check that roles of one affinity group agree; several groups become one gang."""
    first: dict[str, tuple[str, HivedRole]] = {}
    for name, role in roles.items():
        if role.group is None:
            continue
        other_name, other = first.setdefault(role.group, (name, role))
        if (other.sku_type, other.pinned) != (role.sku_type, role.pinned):
            section.at("taskRoles").child(name).refuse(
                role.group,
                phrase("openpai-group-differs", name=other_name),
                phrase("openpai-give-same-type"),
                "conflict",
            )
    groups = {role.group for role in roles.values()}
    in_one = len(groups) == 1 and set(roles) == set(role_names)
    if groups - {None} and not in_one:
        section.report.warn(section.at("taskRoles"), phrase("openpai-groups"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleContext:
    """Values that all roles share."""

    parameters: Mapping[str, Any]
    secrets: Mapping[str, str]
    prerequisites: Prerequisites
    deployment: Mapping[str, tuple[list[str], list[str]]]
    hived: Mapping[str, HivedRole]
    has_devices: bool
    has_cpu_pools: bool = False


def requests_devices(section: Section, hived: HivedRole) -> bool:
    """Return whether a task role requests GPUs, before it is read."""
    resources = section.peek("resourcePerInstance")
    gpus = resources.get("gpu") if isinstance(resources, Mapping) else None
    return bool(hived.sku_number or gpus)


def read_role(section: Section, name: str, context: RoleContext, *, gang: bool) -> dict[str, Any]:
    """Return one role of the native specification.

    Args:
        section: the task role.
        name: name of the task role.
        context: values that all roles share.
        gang: whether the tasks form a gang.
    """
    report = section.report
    hived = context.hived.get(name, HivedRole())
    resources = section.section("resourcePerInstance")
    role: dict[str, Any] = {
        "instances": section.integer("instances", 1, 1000) or 1,
        "devices": _devices(resources, hived),
        "image": context.prerequisites.image(section),
    }
    if hived.sku_type:
        role["device_types"] = [hived.sku_type]
    if hived.pinned:
        role["pinned_cell"] = hived.pinned
    if cpus := resources.integer("cpu", 0, 4096, required=True):
        role["cpus"] = cpus
    if memory := resources.integer("memoryMB", 0, 2**26, required=True):
        role["memory"] = memory * MIB
    # In a job without a gang, each instance without devices is a job without devices.
    is_placeable = (gang and context.has_devices) or context.has_cpu_pools
    if role["devices"] == 0 and not (is_placeable and _is_sized(role)):
        report.warn(resources.at("gpu"), phrase("openpai-no-gpu"))
        role["devices"] = 1
    if ports := _ports(resources.section("ports")):
        role["ports"] = ports
    if completion := _completion(section.section("completion")):
        role["completion"] = completion
    task_retries = section.integer("taskRetryCount", -1, 100)
    if task_retries and gang:
        words = phrase("openpai-task-retries")
        report.warn(section.at("taskRetryCount"), words)
    options = section.section("extraContainerOptions")
    if container := _container_options(options, can_use_rdma=gang and role["instances"] > 1):
        role["container"] = container
    _command(role, section, name, context)
    section.take("protocolVersion")
    resources.finish()
    section.finish()
    return {key: value for key, value in role.items() if value is not None}


def _is_sized(role: Mapping[str, Any]) -> bool:
    """Return whether a role without devices can run in the share of others, or in a pool."""
    is_sized = "cpus" in role and "memory" in role
    return is_sized and "device_types" not in role and "pinned_cell" not in role


def _devices(resources: Section, hived: HivedRole) -> int:
    gpus = resources.integer("gpu", 0, 256)
    place, report = resources.at("gpu"), resources.report
    if hived.sku_number and gpus and hived.sku_number != gpus:
        report.warn(place, phrase("openpai-gpus-differ", devices=gpus, reserved=hived.sku_number))
    return hived.sku_number or gpus or 0


def _ports(section: Section) -> dict[str, int]:
    found: dict[str, int] = {}
    for label, value, place in section.entries():
        if value == 0 and not isinstance(value, bool):
            section.report.warn(place, phrase("openpai-no-port"))
        else:
            found[label] = value
    return found


def _completion(section: Section) -> dict[str, Any]:
    """Return the completion policy; null means -1, and a missing key means the default."""
    found: dict[str, Any] = {}
    for old, new in (
        ("minFailedInstances", "min_failed"),
        ("minSucceededInstances", "min_succeeded"),
    ):
        if section.has(old):
            number = section.integer(old, -1, 1000)
            found[new] = -1 if number is None else number
    section.finish()
    return found


def _container_options(section: Section, *, can_use_rdma: bool) -> dict[str, Any]:
    """Return the settings of the container; RDMA is for gangs of several instances."""
    found: dict[str, Any] = {}
    if size := section.integer("shmMB", 0, 2**26):
        found["shm"] = size * MIB
    if can_use_rdma and section.peek("infiniband") is True:
        section.take("infiniband")
        found["rdma"] = True
    else:
        section.leave_out("infiniband", phrase("openpai-infiniband"), needed=False)
    section.finish()
    return found


def _command(role: dict[str, Any], section: Section, name: str, context: RoleContext) -> None:
    """Add the role's script and its secrets to ``role``."""
    place = section.at("commands")
    own = read_commands(section, "commands")
    before, after = context.deployment.get(name, ([], []))
    references = context.prerequisites.references(section)
    starts = context.prerequisites.take_starts(section)
    if not own:
        place.refuse(
            None,
            phrase("import-no-command"),
            phrase("import-give", key="commands"),
            "missing-field",
        )
        return
    script = "\n".join((*starts, *before, *own, *after))
    values = {"parameters": context.parameters, **references}
    try:
        rendered = render(script, values, {secret: secret for secret in context.secrets})
        role["command"] = read_command(BASH_PRELUDE + rendered)
    except RefusalError as refusal:
        place.note(script, refusal)
        return
    secrets = [secret for secret in referred_secrets(script) if secret in context.secrets]
    if secrets:
        role["secrets"] = {secret: context.secrets[secret] for secret in secrets}
        section.report.warn(place, phrase("openpai-secrets"))


_USUAL: Final = ("http", "ssh")
"""OpenPAI's REST server adds one port of each to every role that does not declare it."""
_NO_VARIABLE: Final = re.compile(r"[^A-Za-z0-9_]")
_READ: Final = re.compile(
    r"PAI_PORT_LIST_((?:(?!PAI_PORT_LIST_)(?:\S| \+ )){1,100}?)_(http|ssh)(?![A-Za-z0-9_])"
)
"""Matches also composed roles or indices, as in ``PAI_PORT_LIST_w_${i}_http`` or with plus signs.

The match ends at the end of a variable, since another one may follow.
"""


def declared_labels(role: Section) -> set[str]:
    """Return the labels of the ports that a role declares, including labels with 0 ports."""
    resources = role.peek("resourcePerInstance")
    ports = resources.get("ports") if isinstance(resources, Mapping) else None
    return set(ports) if isinstance(ports, Mapping) else set()


def add_usual_ports(
    roles: Mapping[str, dict[str, Any]],
    sections: Mapping[str, Section],
    declared: Mapping[str, set[str]],
) -> None:
    """Declare the default ports of roles whose ports a command of the job reads.

    Args:
        roles: the translated roles by old name.
        sections: place of each role in the document.
        declared: result of ``declared_labels`` for each role before it was parsed.
    """
    commands = "\n".join(role.get("command", "") for role in roles.values())
    for name, label in _read_ports(commands, list(roles)):
        if label not in declared[name]:
            roles[name].setdefault("ports", {})[label] = 1
            place = sections[name].at("resourcePerInstance").child("ports").child(label)
            sections[name].report.warn(place, phrase("openpai-usual-port"))


def _read_ports(commands: str, names: Sequence[str]) -> list[tuple[str, str]]:
    """Return roles and port labels that commands read; a computed role name means all roles."""
    found = set[tuple[str, str]]()
    for begin, label in _READ.findall(commands):
        spelled = [name for name in names if begin.startswith(f"{_NO_VARIABLE.sub('_', name)}_")]
        # Of ``worker`` and ``worker_a``, the longer name matches, since an index is a number.
        longest = max(map(len, spelled), default=0)
        meant = [name for name in spelled if len(name) == longest]
        found |= {(name, label) for name in meant or names}
    return [(name, label) for name in names for label in _USUAL if (name, label) in found]
