"""The steps of a batch script: what its calls of ``srun`` ask for, and what of that is lost."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from portal.api.importers.reading import Report
from scheduling.core.jobspec.errors import Place
from tessera.slurm_options import SHORT, WITH_VALUE, full_name

_SRUN_ALONE: Final = frozenset(
    [
        "accel-bind",
        "cpu-bind",
        "epilog",
        "het-group",
        "jobid",
        "mpi",
        "prolog",
        "relative",
        "task-epilog",
        "task-prolog",
        "threads",
    ]
)
_SRUN_SHORT: Final = {"r": "relative", "T": "threads", "W": "wait"}
_NOT_OF_SRUN: Final = frozenset(["array", "batch", "wrap"])
TAKE_VALUES: Final = (WITH_VALUE - _NOT_OF_SRUN) | _SRUN_ALONE | {"wait"}
"""Options of ``srun`` after which a value follows where no ``=`` stands."""

SHORT_NAMES: Final = {
    letter: name for letter, name in {**SHORT, **_SRUN_SHORT}.items() if name in TAKE_VALUES
}

# Up to the end of the command: a line may have several. Signs in quotes, 2>&1 and a pipe end none.
_CALL: Final = re.compile(
    r"""(?:^|[\s;&|(`!{])srun\s+"""
    r"""((?:"[^"]*"|'[^']*'|[<>]&|&>|\|&|\|(?!\|)|[^;&|])*(?:&(?!&))?)"""
)
_OF_DEVICES: Final = ("gpus", "gres", "gpus-per-node")
# Without its container a step is another program; the log is read elsewhere.
_LOST: Final[dict[str, tuple[bool, str]]] = {
    "container-image": (
        True,
        "Steps run where the script runs; write --container-image among the options of the job.",
    ),
    "container-mounts": (True, "Directories of nodes are not mounted into containers."),
    "container-name": (True, "Steps run where the script runs, in no container of their own."),
    "container-workdir": (True, "Steps begin in the directory of the script; write cd."),
    "multi-prog": (True, "All tasks of a step run the same program."),
    "mpi": (True, "Tasks find no PMI server; programs of MPI cannot find each other by it."),
    "chdir": (True, "Steps begin in the directory of the script; write cd."),
    "output": (False, "The portal keeps the log of all steps; no file is written."),
    "error": (False, "The portal keeps the log of all steps; no file is written."),
}


@dataclass(slots=True)
class Step:
    """One call of ``srun``.

    Attributes:
        options: values by long name; of a flag empty.
        behind: it goes on in the background, so that others run beside it.
    """

    options: dict[str, str] = field(default_factory=dict)
    behind: bool = False


def steps_of(lines: Sequence[str]) -> Iterator[Step]:
    """The calls of ``srun`` in a script, as far as its text shows them."""
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    for line in joined.split("\n"):
        if line.lstrip().startswith("#"):
            continue
        for match in _CALL.finditer(line):
            yield _step(match[1])


def report_steps(lines: Sequence[str], place: Place, report: Report) -> None:
    """Name what steps ask for by themselves and do not get, each thing once."""
    told: set[str] = set()
    for step in steps_of(lines):
        for name, value in step.options.items():
            needed, words = _LOST.get(name, (False, ""))
            if step.behind and name in _OF_DEVICES:
                needed = True
                words = "Steps that run side by side all see all devices of their node."
            if not words or name in told or (name, value) == ("mpi", "none"):
                continue
            told.add(name)
            shown = f"srun --{name}={value}" if value else f"srun --{name}"
            report.lacks(place, shown, words, needed=needed)


def _step(text: str) -> Step:
    ending = text.rstrip()
    step = Step(behind=ending.endswith("&"))
    words = iter(text.split())
    for word in words:
        if word == "--" or not word.startswith("-"):
            break
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = name if name in TAKE_VALUES else full_name(name)
        else:
            name = SHORT_NAMES.get(word[1:2], word[1:2])
            equals = value = word[2:].removeprefix("=")
        if not equals and name in TAKE_VALUES:
            value = next(words, "")
        step.options[name] = value
    return step
