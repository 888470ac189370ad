"""The one role of a batch job: its script as a command, and the variables it is started with."""

import re
from typing import Any, Final

from portal.api.importers.images import read_image
from portal.api.importers.reading import Report, Section
from portal.api.importers.sbatch_options import Script
from portal.api.importers.sbatch_sizes import Sizes
from portal.api.importers.scripts import change_directory
from portal.api.importers.slurm_shell import command_of, is_shell, uses
from portal.api.importers.slurm_steps import report_steps
from portal.api.importers.slurm_values import read_signal
from portal.api.importers.slurm_variables import unset_variables
from scheduling.core.jobspec.errors import Place, RefusalError
from scheduling.core.jobspec.scalars import read_command

_ASSIGNED: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,127})=(.*)", re.DOTALL)
_DIRECTORY: Final = re.compile(r"[^\0-\x1f\x7f%]{1,1000}")
_SCRIPT: Final = Place("script")
# Both ways to do something once mean the same with Slurm.
_IN_STEPS: Final = (
    "runs on every node, where Slurm would run it on the first one only; each srun starts the "
    "tasks of its own node. Put srun -N1 -n1 before what is to run once; other nodes do not wait "
    "for it."
)
_ON_EVERY_NODE: Final = (
    "runs on every node, where Slurm would run it on the first one only. What is to be done once "
    "has to be done where SLURM_NODEID is 0; other nodes do not wait for it."
)
_LONGEST_GRACE: Final = 3600
_SIGNALS: Final = frozenset(
    ["HUP", "INT", "QUIT", "USR1", "USR2", "ALRM", "CONT", "1", "2", "3", "10", "12", "14", "18"]
)


def script_role(
    script: Script, given: Section, sizes: Sizes, report: Report, spec: dict[str, Any]
) -> dict[str, Any]:
    """The role ``worker``; a grace period is put into ``spec``."""
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
        _refuse_script(report, "holds no command.", "Write the commands below the options.")
        return role
    try:
        role["command"] = read_command(command_of(script.interpreter, lines, before))
    except RefusalError as refusal:
        _refuse_script(report, refusal.message, refusal.remedy)
    return role


def _refuse_script(report: Report, message: str, remedy: str) -> None:
    Place("script", report.errors).refuse(None, message, remedy)


def _lines(script: Script, given: Section) -> list[str]:
    wrapped = given.text("--wrap")
    if wrapped is None:
        return script.lines
    if any(line.strip() and not line.lstrip().startswith("#") for line in script.lines):
        words = "comes with a script, and only one of the two can run."
        given.at("--wrap").refuse(wrapped, words, "Remove it.", "conflict")
    return [wrapped]


def _signal(given: Section, spec: dict[str, Any]) -> str:
    """A trap that hands the notice on as the wanted signal; the grace period as a side effect."""
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
        given.report.warn(given.at("--signal"), "comes when the job has to leave, at any time.")
        return ""
    if name not in _SIGNALS or "B" not in to:
        words = "The notice to leave is SIGTERM to all processes of the job."
        given.report.lacks(given.at("--signal"), text, words, needed=True)
        return ""
    words = "comes when the job has to leave, right after a SIGTERM to its other processes."
    given.report.warn(given.at("--signal"), words)
    return f"trap 'kill -{name} $$' TERM\n"


def _directory(given: Section) -> str:
    text = ""
    for option in ("--chdir", "--container-workdir"):
        path = given.text(option)
        if path is None:
            continue
        if not _DIRECTORY.fullmatch(path):
            given.at(option).refuse(path, "is not a path.", "Write a path on one line.")
            continue
        given.report.warn(given.at(option), "must be there on every node.")
        text += change_directory(path)
    return text


def _placement(role: dict[str, Any], given: Section) -> None:
    if name := given.text("--reservation"):
        given.report.warn(
            given.at("--reservation"), "is read as the name of a cell that admins have pinned."
        )
        role["pinned_cell"] = name
        if role.pop("device_types", None):
            given.report.warn(given.at("--gres"), "names a type; the pinned cell has its own.")
    switches = given.text("--switches")
    if switches is None:
        return
    if switches.partition("@")[0] == "1":
        given.report.warn(given.at("--switches"), "is read as: all nodes in one rack.")
        role["within"] = "rack"
    else:
        words = "Only 1, a single rack, has a counterpart."
        given.report.lacks(given.at("--switches"), switches, words, needed=False)


def _variables(given: Section, sizes: Sizes) -> dict[str, str]:
    env: dict[str, str] = {}
    text = given.text("--export")
    for part in (text or "").split(","):
        if match := _ASSIGNED.fullmatch(part):
            env[match[1]] = match[2]
        elif part == "ALL":
            words = "Variables of the shell that submits do not come along."
            given.report.lacks(given.at("--export"), part, words, needed=False)
        elif part == "NIL":
            given.report.warn(given.at("--export"), "is NIL; the job's own variables are set.")
        elif part == "NONE":
            given.report.warn(given.at("--export"), "is NONE, as all jobs have it here.")
        elif part:
            words = "Its value is not in the script; write NAME=VALUE."
            given.report.lacks(given.at("--export"), part, words, needed=True)
    for name, number in (
        ("NTASKS_PER_NODE", sizes.per_node if sizes.per_node > 1 else None),
        ("NTASKS", sizes.tasks),
        ("CPUS_PER_TASK", sizes.cpus_per_task),
        ("GPUS_PER_TASK", sizes.gpus_per_task),
    ):
        if number:
            env.setdefault(f"SLURM_{name}", str(number))
    return env


def _scan(lines: list[str], sizes: Sizes, report: Report, shell: bool) -> None:
    """Say what the script does that is different on nodes without Slurm."""
    many = sizes.most_nodes > 1
    if many:
        report.warn(_SCRIPT, _IN_STEPS if shell else _ON_EVERY_NODE)
    if not shell:
        return
    if not many and uses("srun", lines):
        report.warn(_SCRIPT, "calls srun, which starts its tasks on this node without Slurm.")
    report_steps(lines, _SCRIPT, report)
    if many and (uses("mpirun", lines) or uses("mpiexec", lines)):
        words = "mpirun would start on every node; start one process a node by srun instead."
        report.lacks(_SCRIPT, "mpirun", words, needed=True)
    for program in ("module", "ml", "spack"):
        if uses(program, lines):
            words = f"calls {program}, which must be there on the nodes or in the image."
            report.warn(_SCRIPT, words)
    for program in ("sbatch", "squeue", "scancel", "sbcast", "sattach", "salloc"):
        if uses(program, lines):
            words = f"The script calls {program}, which is not on the nodes."
            report.lacks(_SCRIPT, program, words, needed=True)
    _scan_variables(lines, report)


def _scan_variables(lines: list[str], report: Report) -> None:
    unset = unset_variables(lines)
    if "SLURM_TMPDIR" in unset:
        unset.remove("SLURM_TMPDIR")
        report.warn(_SCRIPT, "uses SLURM_TMPDIR, which is not set; TMPDIR is.")
    if unset:
        report.warn(_SCRIPT, f"uses {', '.join(unset)}, which no job finds here.")
