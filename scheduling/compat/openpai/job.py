"""Translation of OpenPAI jobs (protocol version 2)."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from scheduling.compat.documents import parse_document
from scheduling.compat.importer import GangNames, Importer, Member, as_variable
from scheduling.compat.openpai.messages import TABLE, phrase
from scheduling.compat.openpai.prerequisites import read_commands, read_prerequisites
from scheduling.compat.openpai.roles import (
    HivedRole,
    RoleContext,
    add_usual_ports,
    declared_labels,
    read_hived,
    read_role,
    requests_devices,
)
from scheduling.compat.reading import ParseReport, Section
from scheduling.compat.result import Imported, ImportRefusedError
from scheduling.compat.shared import plain_text, read_storage
from scheduling.core.jobspec import FieldError, InvalidJobSpecError, parse
from scheduling.core.jobspec.errors import DocumentPlace, RefusalError

_ROLE: Final = re.compile(r"[A-Za-z0-9_-]{1,63}")
_NOTE_CHARS: Final = 500
_MAILS: Final = (
    ("running", "running"),
    ("succeeded", "succeeded"),
    ("stopped", "stopped"),
    ("failed", "failed"),
    ("retried", "requeued"),
)


def import_openpai(
    text: str | bytes, content_type: str = "", *, has_cpu_pools: bool = False
) -> Imported:
    """Translate an OpenPAI job of protocol version 2.

    Args:
        text: the document as it was sent.
        content_type: media type of the document; YAML by default.
        has_cpu_pools: whether a node has CPUs and memory for jobs without devices.

    Returns:
        The native specification with warnings and unsupported parts.

    Raises:
        ImportRefusedError: the document is malformed, or no job can represent it.
    """
    return translate_openpai(parse_document(text, content_type), has_cpu_pools=has_cpu_pools)


def translate_openpai(document: object, *, has_cpu_pools: bool = False) -> Imported:
    """Translate a parsed OpenPAI job; see ``import_openpai``.

    Args:
        document: the job.
        has_cpu_pools: whether a node has CPUs and memory for jobs without devices.
    """
    report = ParseReport()
    place = DocumentPlace(errors=report.errors)
    spec, names = _job(Section(document, place, report), has_cpu_pools=has_cpu_pools)
    report.raise_errors()
    check_openpai(spec, names)
    return Imported(
        spec=spec,
        warnings=tuple(report.warnings),
        unsupported=tuple(report.unsupported),
        holds_secrets=_holds_secrets(document),
    )


def _holds_secrets(document: object) -> bool:
    """Return whether a document contains secrets, used or not, or registry passwords."""
    if not isinstance(document, Mapping):
        return False
    needed = document.get("prerequisites")
    images = needed if isinstance(needed, list) else []
    has_auth = any(isinstance(image, Mapping) and image.get("auth") for image in images)
    return bool(document.get("secrets")) or has_auth


def _job(top: Section, *, has_cpu_pools: bool) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the specification, and the original name of each of its roles."""
    _check_kind(top)
    name = top.text("name", required=True)
    description = top.text("description")
    for key in ("version", "contributor"):
        top.leave_out(key, phrase("openpai-descriptive"), needed=False)
    retries = top.integer("jobRetryCount", 0, 100)
    parameters = _parameters(top)
    role_sections = _role_sections(top)
    role_names = set(role_sections)
    defaults = top.section("defaults")
    extras = top.section("extras")
    hived = read_hived(extras.section("hivedScheduler"), role_names)
    gang = _gang(extras)
    context = RoleContext(
        parameters=parameters,
        secrets=_secrets(top.section("secrets")),
        prerequisites=read_prerequisites(top),
        deployment=_deployment(top, defaults, role_names),
        hived=hived.roles,
        has_devices=any(
            requests_devices(section, hived.roles.get(name, HivedRole()))
            for name, section in role_sections.items()
        ),
        has_cpu_pools=has_cpu_pools,
    )
    where = _virtual_cluster(defaults)
    spec: dict[str, Any] = {
        "name": name,
        "virtual_cluster": where,
        **hived.job_fields,
        "roles": {},
    }
    if description:
        spec["note"] = _note(description, top)
    if not gang:
        spec["gang"] = False
        retries = _own_retries(role_sections, retries)
    if retries:
        spec["retries"] = {"user": retries}
    names = _new_names(role_sections, top.report)
    declared = {old: declared_labels(section) for old, section in role_sections.items()}
    roles = {old: read_role(role_sections[old], old, context, gang=gang) for old in names.values()}
    add_usual_ports(roles, role_sections, declared)
    spec["roles"] = {new: roles[old] for new, old in names.items()}
    spec |= _notify(extras)
    spec["compat"] = _compat(names)
    storage = _read_plugins(extras)
    if storage:
        spec["storage"] = storage
    for section in (defaults, extras, top):
        section.finish()
    return spec, names


def _compat(names: Mapping[str, str]) -> dict[str, Any]:
    """Return the ``compat`` field: the format, and the original names of renamed roles."""
    renamed = {new: old for new, old in names.items() if new != old}
    return {"format": "openpai", **({"role_names": renamed} if renamed else {})}


def _role_sections(top: Section) -> dict[str, Section]:
    raw_roles = top.section("taskRoles")
    found = {key: Section(value, place, top.report) for key, value, place in raw_roles.entries()}
    if not found:
        raw_roles.place.refuse(
            None,
            phrase("openpai-no-role"),
            phrase("import-give", key="taskRoles"),
            "missing-field",
        )
    return found


def _check_kind(top: Section) -> None:
    version = top.take("protocolVersion")
    if version not in (2, "2") or isinstance(version, bool):
        top.at("protocolVersion").refuse(
            version, phrase("openpai-version"), phrase("openpai-write-version"), "out-of-range"
        )
    kind = top.take("type")
    if kind not in (None, "job"):
        top.at("type").refuse(
            kind, phrase("openpai-not-a-job"), phrase("openpai-write-job"), "malformed"
        )


def _secrets(section: Section) -> dict[str, str]:
    """Return the secrets by name; errors never contain their values."""
    hidden = Section({}, replace(section.place, hidden=True), section.report)
    found: dict[str, str] = {}
    for key, value, _place in section.entries():
        try:
            found[key] = plain_text(value)
        except RefusalError as refusal:
            hidden.at(key).note(value, refusal)
    return found


def _parameters(top: Section) -> dict[str, Any]:
    """Return the parameters by name, with a warning for unused parameters."""
    texts = str([top.peek(key) for key in ("taskRoles", "deployments", "prerequisites")])
    found: dict[str, Any] = {}
    for key, value, place in top.section("parameters").entries():
        found[key] = value
        if f"$parameters.{key}" not in texts:
            top.report.warn(place, phrase("openpai-parameter-unused"))
    return found


def _virtual_cluster(defaults: Section) -> str | None:
    name = defaults.text("virtualCluster")
    if name is None:
        defaults.report.warn(defaults.at("virtualCluster"), phrase("openpai-default-cluster"))
        return "default"
    return name


def _note(description: str, top: Section) -> str:
    if len(description) > _NOTE_CHARS:
        top.report.warn(top.at("description"), phrase("openpai-note-cut", most=_NOTE_CHARS))
    return description[:_NOTE_CHARS].rstrip()


def _gang(extras: Section) -> bool:
    """Return whether the job is a gang; otherwise each task becomes a job of its own."""
    gang = extras.boolean("gangAllocation")
    if gang is False:
        extras.report.warn(extras.at("gangAllocation"), phrase("openpai-no-gang"))
    return gang is not False


def _own_retries(roles: Mapping[str, Section], job_retries: int | None) -> int:
    """Return the number of retries of each task of a job that is not a gang."""
    counts = {section.peek("taskRetryCount") for section in roles.values()}
    place = next(iter(roles.values())).at("taskRetryCount") if roles else None
    if place is not None and len(counts) > 1:
        place.refuse(
            None,
            phrase("openpai-retries-differ"),
            phrase("openpai-write-same-retries"),
            "conflict",
        )
    count = next(iter(counts), None)
    return count if isinstance(count, int) else job_retries or 0


def _deployment(
    top: Section, defaults: Section, role_names: set[str]
) -> dict[str, tuple[list[str], list[str]]]:
    """Return the commands before and after each role, from the selected deployment."""
    wanted = defaults.text("deployment")
    found: dict[str, dict[str, tuple[list[str], list[str]]]] = {}
    for section in top.sections("deployments"):
        name = section.text("name", required=True)
        for key in ("protocolVersion", "version", "contributor", "description"):
            section.take(key)
        roles = {}
        for role, value, place in section.section("taskRoles").entries():
            part = Section(value, place, top.report)
            roles[role] = (read_commands(part, "preCommands"), read_commands(part, "postCommands"))
            part.finish()
            if role not in role_names:
                place.refuse(
                    role, phrase("openpai-not-a-role"), phrase("import-remove"), "conflict"
                )
        section.finish()
        if name in found:
            section.at("name").refuse(
                name, phrase("import-used-twice"), phrase("import-rename-one"), "duplicate"
            )
        if name is not None:
            found[name] = roles
    if wanted is not None and wanted not in found:
        defaults.at("deployment").refuse(
            wanted,
            phrase("openpai-no-deployment"),
            phrase("openpai-define-deployment"),
            "conflict",
        )
    return found.get(wanted or "", {})


def _new_names(role_sections: Mapping[str, Section], report: ParseReport) -> dict[str, str]:
    """Return new names of the roles by old name: lower case, without underscores, unique."""
    names: dict[str, str] = {}
    for old, section in role_sections.items():
        if not _ROLE.fullmatch(old):
            section.place.refuse(
                old, phrase("openpai-not-a-role-name"), phrase("openpai-write-role-name")
            )
        base = re.sub(r"[^a-z0-9-]", "-", old.lower()).lstrip("-0123456789")[:28] or "role"
        new, number = base, 1
        while new in names:
            number += 1
            new = f"{base}-{number}"
        if new != old:
            report.warn(section.place, phrase("openpai-role-renamed", name=new))
        names[new] = old
    return names


def _notify(extras: Section) -> dict[str, Any]:
    """Return the ``notify`` field of a job; empty if the document has no notification settings."""
    if extras.peek("jobStatusChangeNotification") is None:
        return {}
    section = extras.section("jobStatusChangeNotification")
    chosen = [ours for theirs, ours in _MAILS if section.boolean(theirs)]
    section.finish()
    return {"notify": {"on": chosen}}


def _team_storages(
    item: Mapping[str, Any], place: DocumentPlace, report: ParseReport
) -> list[dict[str, Any]]:
    """Return the storages of the plugin ``teamwise_storage``."""
    parameters = item.get("parameters")
    names = parameters.get("storageConfigNames") if isinstance(parameters, Mapping) else None
    if not isinstance(names, list):
        report.leave_out(place, item, phrase("openpai-storage"), needed=True)
        return []
    there = place.child("parameters").child("storageConfigNames")
    return [
        found
        for index, name in enumerate(names)
        for found in read_storage(name, None, there.item(index), report)
    ]


def _read_plugins(extras: Section) -> list[dict[str, Any]]:
    """Return the storages of the runtime plugins, and report the other plugins."""
    storage: list[dict[str, Any]] = []
    plugins = extras.items("com.microsoft.pai.runtimeplugin")
    for item, place in plugins:
        plugin = item.get("plugin") if isinstance(item, Mapping) else None
        if plugin == "teamwise_storage":
            storage += _team_storages(item, place, extras.report)
            continue
        optional = plugin in ("ssh", "tensorboard")
        words = {
            "ssh": phrase("openpai-ssh"),
            "tensorboard": phrase("openpai-tensorboard"),
            "cmd": phrase("openpai-cmd"),
        }.get(str(plugin), phrase("openpai-plugin"))
        extras.report.leave_out(place, plugin, words, needed=not optional)
    extras.leave_out("submitFrom", phrase("openpai-ignored"), needed=False)
    extras.leave_out("tensorBoard", phrase("openpai-tensorboard"), needed=False)
    return storage


_PATHS: Final = (
    (r"^virtual_cluster\b", "defaults.virtualCluster"),
    (r"^note\b", "description"),
    (r"^retries\.user\b", "jobRetryCount"),
    (r"^storage\b.*", "extras.com.microsoft.pai.runtimeplugin"),
    (r"^priority\b", "extras.hivedScheduler.jobPriorityClass"),
    (r"\.command$", ".commands"),
    (r"\.image$", ".dockerImage"),
    (r"\.device_types\b", ".skuType"),
    (r"^(taskRoles\..+)\.pinned_cell$", r"extras.hivedScheduler.\1.pinnedCellId"),
    (r"\.(cpus|memory|ports|devices)\b", r".resourcePerInstance.\1"),
    (r"\.resourcePerInstance\.cpus$", ".resourcePerInstance.cpu"),
    (r"\.resourcePerInstance\.memory$", ".resourcePerInstance.memoryMB"),
    (r"\.resourcePerInstance\.devices$", ".resourcePerInstance.gpu"),
    (r"\.completion\.min_failed$", ".completion.minFailedInstances"),
    (r"\.completion\.min_succeeded$", ".completion.minSucceededInstances"),
)


def check_openpai(spec: dict[str, Any], names: Mapping[str, str]) -> None:
    """Validate the translation, and report faults by the field names of the original.

    Raises:
        ImportRefusedError: the native specification is not valid.
    """
    try:
        parse(spec)
    except InvalidJobSpecError as refused:
        raise ImportRefusedError([_renamed(error, names) for error in refused.errors]) from None


def _renamed(error: FieldError, names: Mapping[str, str]) -> FieldError:
    path = error.field
    for new, old in names.items():
        prefix = f"roles.{new}"
        if path == prefix or path.startswith(f"{prefix}."):
            path = f"taskRoles.{old}{path.removeprefix(prefix)}"
            path = re.sub(r"^taskRoles\..*\.secrets\b", "secrets", path)
            break
    for pattern, wanted in _PATHS:
        path = re.sub(pattern, wanted, path)
    return replace(error, field=path)


def is_openpai(document: object) -> bool:
    """Return whether a document is an OpenPAI job of protocol version 2."""
    return isinstance(document, Mapping) and document.get("protocolVersion") in (2, "2")


def _variables(gang: GangNames, member: Member, _has_gpus: bool) -> dict[str, str]:
    """Return OpenPAI's environment variables of a member, with the original role names."""
    compat, part = gang.spec.compat, gang.spec.part
    names = dict(compat.role_names) if compat else {}
    first = part.rank if part else 0

    def named(role: str) -> str:
        return names.get(role, role)

    found = {
        "PAI_JOB_NAME": f"{gang.user}~{gang.job_name}",
        "PAI_USER_NAME": gang.user,
        "PAI_VIRTUAL_CLUSTER": gang.virtual_cluster,
        "PAI_TASK_ROLE_COUNT": str(len(gang.spec.roles)),
        "PAI_TASK_ROLE_LIST": ",".join(named(role) for role in gang.spec.roles),
        "PAI_CURRENT_TASK_ROLE_NAME": named(member.role),
        "PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX": str(first + member.rank),
    }
    for role, spec in gang.spec.roles.items():
        ranks = gang.of_role(role)
        name = as_variable(named(role))
        found[f"PAI_TASK_ROLE_TASK_COUNT_{name}"] = str(part.size if part else len(ranks))
        found[f"PAI_MIN_FAILED_TASK_COUNT_{name}"] = str(spec.completion.min_failed)
        found[f"PAI_MIN_SUCCEEDED_TASK_COUNT_{name}"] = str(spec.completion.min_succeeded)
        megabytes = (spec.memory or 0) >> 20
        # Devices, processors, memory and shared memory (64 MiB, the default of container engines).
        found[f"PAI_RESOURCE_{name}"] = f"{spec.devices},{spec.cpus or 0:g},{megabytes},64"
        for peer in ranks:
            found[f"PAI_HOST_IP_{name}_{first + peer.rank}"] = peer.host
            for label, numbers in peer.ports.items():
                key = f"PAI_PORT_LIST_{name}_{first + peer.rank}_{as_variable(label)}"
                found[key] = ",".join(str(port) for port in numbers)
    return found


OPENPAI: Final = Importer(
    name="openpai",
    title="OpenPAI",
    read=lambda text, context, content_type: import_openpai(
        text, content_type, has_cpu_pools=context.has_cpu_pools
    ),
    messages=TABLE,
    compat_format="openpai",
    variables=_variables,
    recognises=is_openpai,
)
