"""Translation of Slurm batch scripts: ``#SBATCH`` options and the script itself."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from scheduling.compat.context import Context, Named, cluster_and_priority
from scheduling.compat.documents import decode_text
from scheduling.compat.importer import GangNames, Importer, Member
from scheduling.compat.reading import ParseReport, Paths, Section, check_translation
from scheduling.compat.result import Imported
from scheduling.compat.slurm.messages import TABLE, phrase
from scheduling.compat.slurm.options import read_script, report_client_options, report_unsupported
from scheduling.compat.slurm.script import script_role
from scheduling.compat.slurm.sizes import Sizes, read_sizes
from scheduling.compat.slurm.values import (
    NO_LIMIT,
    read_array,
    read_dependency,
    read_moment,
    read_time,
)
from scheduling.core.jobspec.errors import DocumentPlace
from tessera.slurm_options import SCRIPT

FORMAT: Final = "slurm"
ARRAY_LABEL: Final = "slurm-array"
_NO_NAME: Final = "sbatch"
_EMPTY: Final = Context()
# Matches times with a known offset: relative to now, or with an explicit offset.
_OFFSET: Final = re.compile(r"^now|T.*(?:[Zz]|[+-][0-9:]+)$", re.IGNORECASE)
_MAIL_USER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ENDS: Final = ("succeeded", "failed", "stopped")
_MAIL_TYPES: Final[dict[str, tuple[str, ...]]] = {
    "NONE": (),
    "BEGIN": ("running",),
    "END": _ENDS,
    "FAIL": ("failed",),
    "REQUEUE": ("requeued",),
    "TIME_LIMIT": ("failed",),
    "ALL": ("running", *_ENDS, "requeued"),
}
_MAILS_WITHOUT: Final = {
    "INVALID_DEPEND": phrase("slurm-mail-dependency"),
    "STAGE_OUT": phrase("slurm-mail-stage"),
    "TIME_LIMIT_90": phrase("slurm-mail-time"),
    "TIME_LIMIT_80": phrase("slurm-mail-time"),
    "TIME_LIMIT_50": phrase("slurm-mail-time"),
    "ARRAY_TASKS": phrase("slurm-mail-tasks"),
}
_PATHS: Paths = (
    (r"^virtual_cluster$", "--partition"),
    (r"^priority$", "--qos"),
    (r"^name$", "--job-name"),
    (r"^note$", "--comment"),
    (r"^max_duration$", "--time"),
    (r"^not_before$", "--begin"),
    (r"^after\b.*", "--dependency"),
    (r"^grace_seconds$", "--signal"),
    (r"^notify\b.*", "--mail-user"),
    (r"^roles\.worker\.instances$", "--nodes"),
    (r"^roles\.worker\.device(_type)?s\b.*", "--gres"),
    (r"^roles\.worker\.pinned_cell$", "--reservation"),
    (r"^roles\.worker\.cpus$", "--cpus-per-task"),
    (r"^roles\.worker\.memory$", "--mem"),
    (r"^roles\.worker\.image$", "--container-image"),
    (r"^roles\.worker\.env\b", "--export"),
    (r"^roles\.worker\.command$", "script"),
)


def import_sbatch(text: str | bytes, context: Context = _EMPTY) -> Imported:
    """Translate a batch script.

    Args:
        text: the script as it was sent.
        context: import rules, and facts about this cluster.

    Returns:
        The native specification with warnings and unsupported parts; for an array, one per task.

    Raises:
        ImportRefusedError: the script is malformed, or no job can represent it.
    """
    report = ParseReport()
    script = read_script(decode_text(text), report)
    given = Section(
        {f"--{name}": option.value for name, option in script.options.items()},
        DocumentPlace(errors=report.errors),
        report,
    )
    spec = _job(given, context)
    at_once = None
    array = given.read("--array", lambda value: read_array(str(value)))
    sizes = read_sizes(given, context)
    _put_sizes(spec, sizes)
    spec["roles"] = {"worker": script_role(script, given, sizes, report, spec)}
    report_client_options(given)
    report_unsupported(given)
    given.finish()
    report.raise_errors()
    specs = [spec]
    if array is not None:
        ids, step, throttle = array
        specs = _tasks(spec, ids, step)
        at_once = _at_once(spec, len(ids), throttle, report)
    check_translation(specs[0], _PATHS)
    return Imported(
        spec=specs[0],
        more=tuple(specs[1:]),
        max_parallel=at_once,
        warnings=tuple(report.warnings),
        unsupported=tuple(report.unsupported),
        format="sbatch",
    )


def _job(given: Section, context: Context) -> dict[str, Any]:
    spec: dict[str, Any] = {"name": given.text("--job-name") or _NO_NAME}
    spec |= cluster_and_priority(context, _named(given), given.report)
    if note := given.text("--comment"):
        spec["note"] = note
    seconds = given.read("--time", lambda value: read_time(str(value)))
    if seconds is not None and seconds != NO_LIMIT:
        spec["max_duration"] = seconds
    for option, key in (("--begin", "not_before"), ("--deadline", "deadline")):
        _moment(given, option, key, spec, context)
    if given.take("--hold") is not None:
        spec["held"] = True
    _requeue(given, spec)
    after, others = given.read("--dependency", lambda value: read_dependency(str(value))) or (
        [],
        [],
    )
    if after:
        spec["after"] = after
    for other in others:
        words = phrase("slurm-dependency")
        given.report.leave_out(given.at("--dependency"), other, words, needed=True)
    spec |= _notify(given)
    spec["compat"] = {"format": FORMAT}
    return spec


def _named(given: Section) -> list[Named]:
    """Return the names of partition, account and quality of service, the most specific first."""
    return [
        Named(kind, name, given.at(f"--{kind}"))
        for kind in ("partition", "account", "qos")
        for name in (given.text(f"--{kind}") or "").split(",")
        if name
    ]


def _moment(given: Section, option: str, key: str, spec: dict[str, Any], context: Context) -> None:
    text = given.text(option)
    if text is None:
        return
    moment = read_moment(text, context.now)
    if moment is None:
        words = phrase("slurm-moment")
        given.report.leave_out(given.at(option), text, words, needed=True)
        return
    if not _OFFSET.search(text):
        given.report.warn(given.at(option), phrase("slurm-utc"))
    spec[key] = moment.isoformat().replace("+00:00", "Z")


def _requeue(given: Section, spec: dict[str, Any]) -> None:
    given.take("--requeue")  # the default of Tessera's jobs
    if given.take("--no-requeue") is not None:
        spec["retries"] = {"node": 0, "platform": 0, "preempted": 0, "image": 0}


def _notify(given: Section) -> dict[str, Any]:
    """Return the ``notify`` field of a job; empty if the script has no usable settings."""
    kinds, people = given.text("--mail-type"), given.text("--mail-user")
    readers = _readers(people, given) if people else []
    if kinds is None:
        if people:
            words = phrase("slurm-mail-without-type")
            given.report.leave_out(given.at("--mail-user"), people, words, needed=False)
        return {}
    chosen = _kinds([name.strip().upper() for name in kinds.split(",")], given)
    if chosen is None:
        return {}
    return {"notify": {"on": list(chosen), **({"to": readers} if readers else {})}}


def _kinds(names: Sequence[str], given: Section) -> list[str] | None:
    """Return the native notification events; None if no mail type has a counterpart."""
    place = given.at("--mail-type")
    for name in names:
        if name not in _MAIL_TYPES:
            words = _MAILS_WITHOUT.get(name, phrase("slurm-mail-unknown"))
            given.report.leave_out(place, name, words, needed=False)
    if "TIME_LIMIT" in names:
        given.report.warn(place, phrase("slurm-mail-limit"))
    known = [name for name in names if name in _MAIL_TYPES]
    chosen = dict.fromkeys(word for name in known for word in _MAIL_TYPES[name])
    return list(chosen) if known else None


def _readers(people: str, given: Section) -> list[str]:
    """Return the user names among the mail users; a mail address is not a user name."""
    found = []
    for name in (part.strip() for part in people.split(",")):
        if _MAIL_USER.fullmatch(name):
            found.append(name)
        elif name:
            words = phrase("slurm-mail-address")
            given.report.leave_out(given.at("--mail-user"), name, words, needed=False)
    if found:
        given.report.warn(given.at("--mail-user"), phrase("slurm-mail-members"))
    return found


def _put_sizes(spec: dict[str, Any], sizes: Sizes) -> None:
    if sizes.most_nodes > sizes.nodes:
        spec["elastic"] = {
            "min": sizes.nodes * sizes.devices,
            "max": sizes.most_nodes * sizes.devices,
        }


def _at_once(
    spec: Mapping[str, Any], tasks: int, throttle: int, report: ParseReport
) -> int | None:
    """Return the maximum number of concurrent tasks; None for all."""
    if not throttle or throttle >= tasks:
        return None
    place = DocumentPlace("--array", report.errors)
    if spec.get("held"):
        words = phrase("slurm-array-held")
        report.leave_out(place, f"%{throttle}", words, needed=False)
        return None
    report.warn(place, phrase("slurm-array-throttle", jobs=throttle))
    return throttle


def _tasks(spec: Mapping[str, Any], ids: list[int], step: int) -> list[dict[str, Any]]:
    """Return one job for each task of an array, with its own variables and label."""
    shared = {
        "SLURM_ARRAY_TASK_COUNT": str(len(ids)),
        "SLURM_ARRAY_TASK_MIN": str(ids[0]),
        "SLURM_ARRAY_TASK_MAX": str(ids[-1]),
        "SLURM_ARRAY_TASK_STEP": str(step),
    }
    role = spec["roles"]["worker"]
    name = str(spec["name"])
    return [
        {
            **spec,
            "name": f"{name[:50]} {number}",
            "labels": {ARRAY_LABEL: name[:63].strip()},
            "roles": {
                "worker": {
                    **role,
                    "env": {**role.get("env", {}), **shared, "SLURM_ARRAY_TASK_ID": str(number)},
                }
            },
        }
        for number in ids
    ]


def _variables(gang: GangNames, member: Member, has_gpus: bool) -> dict[str, str]:
    """Return the Slurm variables of a member; the script's ``srun`` numbers tasks of one node."""
    env = gang.spec.roles[member.role].env
    nodes = len(gang.members)
    per_node = _number(env.get("SLURM_NTASKS_PER_NODE", ""), 1)
    tasks = _number(env.get("SLURM_NTASKS", ""), nodes * per_node)
    hosts = ",".join(peer.host for peer in gang.members)
    job = str(gang.job_id)
    cpus = int(gang.spec.roles[member.role].cpus or 0)
    array = {}
    if "SLURM_ARRAY_TASK_ID" in env:
        array = {"SLURM_ARRAY_JOB_ID": env.get("SLURM_ARRAY_JOB_ID", job)}
    return {
        "SLURM_JOB_ID": job,
        "SLURM_JOBID": job,
        "SLURM_JOB_NAME": gang.job_name,
        "SLURM_JOB_USER": gang.user,
        "SLURM_JOB_ACCOUNT": gang.tenant,
        "SLURM_JOB_PARTITION": gang.virtual_cluster,
        "SLURM_CLUSTER_NAME": "tessera",
        "SLURM_JOB_NODELIST": hosts,
        "SLURM_NODELIST": hosts,
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_NNODES": str(nodes),
        "SLURM_NODEID": str(member.node_rank),
        "SLURMD_NODENAME": member.host,
        "SLURM_NTASKS": str(tasks),
        "SLURM_NPROCS": str(tasks),
        "SLURM_NTASKS_PER_NODE": str(per_node),
        "SLURM_TASKS_PER_NODE": f"{per_node}(x{nodes})" if nodes > 1 else str(per_node),
        "SLURM_PROCID": str(member.node_rank * per_node),
        "SLURM_LOCALID": "0",
        "SLURM_RESTART_COUNT": str(max(gang.attempt_number - 1, 0)),
        **({"SLURM_CPUS_ON_NODE": str(cpus)} if cpus else {}),
        **(_variables_of_gpus(gang, member) if has_gpus else {}),
        **array,
    }


def _variables_of_gpus(gang: GangNames, member: Member) -> dict[str, str]:
    count = str(len(member.devices))
    return {
        "SLURM_GPUS_ON_NODE": count,
        "SLURM_GPUS_PER_NODE": count,
        "SLURM_GPUS": str(sum(len(peer.devices) for peer in gang.members)),
        "SLURM_JOB_GPUS": ",".join(map(str, member.devices)),
    }


def _number(text: str, otherwise: int) -> int:
    """Return a positive integer written by a user, or ``otherwise``."""
    is_number = text.isascii() and text.isdecimal() and len(text) < 7 and int(text) > 0
    return int(text) if is_number else otherwise


SBATCH: Final = Importer(
    name="sbatch",
    title="Slurm",
    read=lambda text, context, _content_type: import_sbatch(text, context),
    messages=TABLE,
    compat_format=FORMAT,
    variables=_variables,
    recognises_text=lambda text: SCRIPT.search(text) is not None,
    aliases=("slurm",),
    rule_kinds={
        "partition": phrase("slurm-partition-kind"),
        "account": phrase("slurm-account-kind"),
        "qos": phrase("slurm-qos-kind"),
    },
)
