"""The role of a batch job: its script as a command, and its environment variables."""

import re
from collections.abc import Sequence
from typing import Any, Final

from scheduling.compat.reading import ParseReport, Section
from scheduling.compat.shared import change_directory, read_image
from scheduling.compat.slurm.messages import phrase
from scheduling.compat.slurm.options import Script
from scheduling.compat.slurm.shell import command_of, is_shell, report_steps, uses
from scheduling.compat.slurm.sizes import Sizes
from scheduling.compat.slurm.values import read_signal
from scheduling.core.jobspec.errors import DocumentPlace, RefusalError
from scheduling.core.jobspec.scalars import read_command
from tessera.messages import Listing

_ASSIGNED: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,127})=(.*)", re.DOTALL)
_DIRECTORY: Final = re.compile(r"[^\0-\x1f\x7f%]{1,1000}")
_SCRIPT: Final = DocumentPlace("script")
# Both ways of running a command once have the same meaning in Slurm.
_IN_STEPS: Final = phrase("slurm-runs-on-every-node-steps")
_ON_EVERY_NODE: Final = phrase("slurm-runs-on-every-node")
_LONGEST_GRACE: Final = 3600
_SIGNALS: Final = frozenset(
    ["HUP", "INT", "QUIT", "USR1", "USR2", "ALRM", "CONT", "1", "2", "3", "10", "12", "14", "18"]
)


def script_role(
    script: Script, given: Section, sizes: Sizes, report: ParseReport, spec: dict[str, Any]
) -> dict[str, Any]:
    """Return the role ``worker``; set the grace period in ``spec``."""
    before = _signal(given, spec) + _directory(given)
    lines = _lines(script, given)
    _scan(lines, sizes, report, is_shell(script.interpreter))
    role: dict[str, Any] = {"instances": sizes.nodes, "devices": sizes.devices}
    if sizes.device_types:
        role["device_types"] = list(sizes.device_types)
    _placement(role, given)
    role |= {
        key: value for key, value in (("cpus", sizes.cpus), ("memory", sizes.memory)) if value
    }
    image = given.text("--container-image")
    if image is not None and (name := read_image(image, given.at("--container-image"), report)):
        role["image"] = name
    env = _variables(given, sizes)
    if env:
        role["env"] = env
    if not any(line.strip() and not line.lstrip().startswith("#") for line in lines):
        _refuse_script(report, phrase("import-no-command"), phrase("slurm-write-commands"))
        return role
    try:
        role["command"] = read_command(command_of(script.interpreter, lines, before))
    except RefusalError as refusal:
        _refuse_script(report, refusal.message, refusal.remedy)
    return role


def _refuse_script(report: ParseReport, message: str, remedy: str) -> None:
    DocumentPlace("script", report.errors).refuse(None, message, remedy)


def _lines(script: Script, given: Section) -> list[str]:
    wrapped = given.text("--wrap")
    if wrapped is None:
        return script.lines
    if any(line.strip() and not line.lstrip().startswith("#") for line in script.lines):
        words = phrase("slurm-wrap-and-script")
        given.at("--wrap").refuse(wrapped, words, phrase("import-remove"), "conflict")
    return [wrapped]


def _signal(given: Section, spec: dict[str, Any]) -> str:
    """Return a trap that forwards the notice as the requested signal; set the grace period."""
    text = given.text("--signal")
    if text is None:
        return ""
    try:
        to, name, seconds = read_signal(text)
    except RefusalError as refusal:
        given.at("--signal").note(text, refusal)
        return ""
    spec["grace_seconds"] = min(seconds, _LONGEST_GRACE)
    if name in ("TERM", "15"):
        given.report.warn(given.at("--signal"), phrase("slurm-signal-any-time"))
        return ""
    if name not in _SIGNALS or "B" not in to:
        words = phrase("slurm-signal-term-only")
        given.report.leave_out(given.at("--signal"), text, words, needed=True)
        return ""
    words = phrase("slurm-signal-after-term")
    given.report.warn(given.at("--signal"), words)
    return f"trap 'kill -{name} $$' TERM\n"


def _directory(given: Section) -> str:
    text = ""
    for option in ("--chdir", "--container-workdir"):
        path = given.text(option)
        if path is None:
            continue
        if not _DIRECTORY.fullmatch(path):
            given.at(option).refuse(path, phrase("slurm-not-a-path"), phrase("slurm-write-path"))
            continue
        given.report.warn(given.at(option), phrase("import-path-on-every-node"))
        text += change_directory(path)
    return text


def _placement(role: dict[str, Any], given: Section) -> None:
    if name := given.text("--reservation"):
        given.report.warn(given.at("--reservation"), phrase("slurm-reservation"))
        role["pinned_cell"] = name
        if role.pop("device_types", None):
            given.report.warn(given.at("--gres"), phrase("slurm-pinned-type"))
    switches = given.text("--switches")
    if switches is None:
        return
    if switches.partition("@")[0] == "1":
        given.report.warn(given.at("--switches"), phrase("slurm-one-rack"))
        role["within"] = "rack"
    else:
        words = phrase("slurm-switches-one")
        given.report.leave_out(given.at("--switches"), switches, words, needed=False)


def _variables(given: Section, sizes: Sizes) -> dict[str, str]:
    env: dict[str, str] = {}
    text = given.text("--export")
    for part in (text or "").split(","):
        if match := _ASSIGNED.fullmatch(part):
            env[match[1]] = match[2]
        elif part == "ALL":
            words = phrase("slurm-export-all")
            given.report.leave_out(given.at("--export"), part, words, needed=False)
        elif part == "NIL":
            given.report.warn(given.at("--export"), phrase("slurm-export-nil"))
        elif part == "NONE":
            given.report.warn(given.at("--export"), phrase("slurm-export-none"))
        elif part:
            words = phrase("slurm-export-value")
            given.report.leave_out(given.at("--export"), part, words, needed=True)
    for name, number in (
        ("NTASKS_PER_NODE", sizes.per_node if sizes.per_node > 1 else None),
        ("NTASKS", sizes.tasks),
        ("CPUS_PER_TASK", sizes.cpus_per_task),
        ("GPUS_PER_TASK", sizes.gpus_per_task),
    ):
        if number:
            env.setdefault(f"SLURM_{name}", str(number))
    return env


def _scan(lines: list[str], sizes: Sizes, report: ParseReport, shell: bool) -> None:
    """Report parts of the script with another effect on nodes without Slurm."""
    many = sizes.most_nodes > 1
    if many:
        report.warn(_SCRIPT, _IN_STEPS if shell else _ON_EVERY_NODE)
    if not shell:
        return
    if not many and uses("srun", lines):
        report.warn(_SCRIPT, phrase("slurm-srun"))
    report_steps(lines, _SCRIPT, report)
    if many and (uses("mpirun", lines) or uses("mpiexec", lines)):
        words = phrase("slurm-mpirun")
        report.leave_out(_SCRIPT, "mpirun", words, needed=True)
    for program in ("module", "ml", "spack"):
        if uses(program, lines):
            words = phrase("slurm-program-needed", program=program)
            report.warn(_SCRIPT, words)
    for program in ("sbatch", "squeue", "scancel", "sbcast", "sattach", "salloc"):
        if uses(program, lines):
            words = phrase("slurm-program-missing", program=program)
            report.leave_out(_SCRIPT, program, words, needed=True)
    _scan_variables(lines, report)


def _scan_variables(lines: list[str], report: ParseReport) -> None:
    unset = unset_variables(lines)
    if "SLURM_TMPDIR" in unset:
        unset.remove("SLURM_TMPDIR")
        report.warn(_SCRIPT, phrase("slurm-tmpdir"))
    if unset:
        report.warn(_SCRIPT, phrase("slurm-variables-unset", names=Listing(tuple(unset))))


FOUND: Final = frozenset(
    f"SLURM_{name}"
    for name in (
        "ARRAY_JOB_ID", "ARRAY_TASK_COUNT", "ARRAY_TASK_ID", "ARRAY_TASK_MAX", "ARRAY_TASK_MIN",
        "ARRAY_TASK_STEP", "CLUSTER_NAME", "CPUS_ON_NODE", "CPUS_PER_TASK", "GPUS",
        "GPUS_ON_NODE", "GPUS_PER_NODE", "GPUS_PER_TASK", "JOBID", "JOB_ACCOUNT", "JOB_GPUS",
        "JOB_ID", "JOB_NAME", "JOB_NODELIST", "JOB_NUM_NODES", "JOB_PARTITION", "JOB_USER",
        "LOCALID", "NNODES", "NODEID", "NODELIST", "NPROCS", "NTASKS", "NTASKS_PER_NODE",
        "PROCID", "RESTART_COUNT", "STEP_NUM_NODES", "SUBMIT_DIR", "TASKS_PER_NODE",
    )
)  # fmt: skip
"""Variables that a job has from its node, from the options of its script or from ``srun``."""

# A variable with a default (${NAME:-1}) may be unset.
_READ: Final = re.compile(r"\$(?:\{(SLURM_[A-Z_]+)(?![A-Z_]|:?[-=+?])|(SLURM_[A-Z_]+))")
_SET: Final = re.compile(r"(?:^|[\s;])(SLURM_[A-Z_]+)=", re.MULTILINE)


def unset_variables(lines: Sequence[str]) -> list[str]:
    """Return the variables that a script reads, does not set, and does not get, in order."""
    text = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    read = dict.fromkeys(match[1] or match[2] for match in _READ.finditer(text))
    return [name for name in read if name not in FOUND.union(_SET.findall(text))]
