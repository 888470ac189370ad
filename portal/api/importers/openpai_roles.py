"""The task roles of an OpenPAI job: what each instance needs, and the script that it runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from portal.api.importers.openpai_hived import HivedRole
from portal.api.importers.openpai_prerequisites import Prerequisites, read_commands
from portal.api.importers.reading import Section
from portal.api.importers.scripts import BASH_PRELUDE
from portal.api.importers.templates import referred_secrets, render
from scheduling.core.jobspec.errors import RefusalError
from scheduling.core.jobspec.scalars import MIB, read_command


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleContext:
    """What all roles share."""

    parameters: Mapping[str, Any]
    secrets: Mapping[str, str]
    prerequisites: Prerequisites
    deployment: Mapping[str, tuple[list[str], list[str]]]
    hived: Mapping[str, HivedRole]


def read_role(section: Section, name: str, context: RoleContext, *, gang: bool) -> dict[str, Any]:
    """One role as ours.

    Args:
        section: the task role.
        name: what it is called there.
        context: what all roles share.
        gang: whether the tasks need each other.
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
    if ports := _ports(resources.section("ports")):
        role["ports"] = ports
    if completion := _completion(section.section("completion")):
        role["completion"] = completion
    task_retries = section.integer("taskRetryCount", -1, 100)
    if task_retries and gang:
        words = "counts only where tasks start one by one; a gang is retried as a whole."
        report.warn(section.at("taskRetryCount"), words)
    _container_options(section.section("extraContainerOptions"))
    _command(role, section, name, context)
    section.take("protocolVersion")
    resources.finish()
    section.finish()
    return {key: value for key, value in role.items() if value is not None}


def _devices(resources: Section, hived: HivedRole) -> int:
    gpus = resources.integer("gpu", 0, 256)
    place, report = resources.at("gpu"), resources.report
    if hived.sku_number and gpus and hived.sku_number != gpus:
        report.warn(place, f"is {gpus}, but {hived.sku_number} devices are reserved by skuNum.")
    devices = hived.sku_number or gpus or 0
    if devices == 0:
        report.warn(place, "is 0; one device is reserved, since roles without do not work yet.")
    return devices or 1


def _ports(section: Section) -> dict[str, int]:
    found: dict[str, int] = {}
    for label, value, place in section.entries():
        if value == 0 and not isinstance(value, bool):
            section.report.warn(place, "asks for no port and was left out.")
        else:
            found[label] = value
    return found


def _completion(section: Section) -> dict[str, Any]:
    """Null means -1 to both, and only an absent key means the default."""
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


def _container_options(section: Section) -> None:
    section.lacks("shmMB", "The size of /dev/shm is the node's default.", needed=False)
    section.lacks("infiniband", "InfiniBand devices are not given to containers.", needed=True)
    section.finish()


def _command(role: dict[str, Any], section: Section, name: str, context: RoleContext) -> None:
    """Put the role's script and its secrets into ``role``."""
    place = section.at("commands")
    own = read_commands(section, "commands")
    before, after = context.deployment.get(name, ([], []))
    references = context.prerequisites.references(section)
    starts = context.prerequisites.take_starts(section)
    if not own:
        place.refuse(None, "holds no command.", "Give commands.", "missing-field")
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
        section.report.warn(
            place, "reads each secret from a file, as one word; no command line shows it."
        )
