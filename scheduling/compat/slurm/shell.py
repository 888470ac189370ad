"""Shell functions that replace ``srun`` and ``scontrol``, and a parser of ``srun`` calls."""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from scheduling.compat.reading import ParseReport
from scheduling.compat.shared import BASH_PRELUDE
from scheduling.compat.slurm.messages import phrase
from scheduling.core.jobspec.errors import DocumentPlace
from tessera.messages import Sentence
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
"""Options of ``srun`` that take the next word as their value if they have no ``=``."""

SHORT_NAMES: Final = {
    letter: name for letter, name in {**SHORT, **_SRUN_SHORT}.items() if name in TAKE_VALUES
}

# Matches up to the end of the command, since a line may contain several. Quoted characters, 2>&1
# and a pipe do not end a command.
_CALL: Final = re.compile(
    r"""(?:^|[\s;&|(`!{])srun\s+"""
    r"""((?:"[^"]*"|'[^']*'|[<>]&|&>|\|&|\|(?!\|)|[^;&|])*(?:&(?!&))?)"""
)
_OF_DEVICES: Final = ("gpus", "gres", "gpus-per-node")
# Without its container a step is another program; output files are elsewhere.
_LOST: Final[dict[str, tuple[bool, Sentence]]] = {
    "container-image": (True, phrase("slurm-step-image")),
    "container-mounts": (True, phrase("import-mounts")),
    "container-name": (True, phrase("slurm-step-container")),
    "container-workdir": (True, phrase("slurm-step-directory")),
    "multi-prog": (True, phrase("slurm-step-programs")),
    "mpi": (True, phrase("slurm-step-mpi")),
    "chdir": (True, phrase("slurm-step-directory")),
    "output": (False, phrase("slurm-step-output")),
    "error": (False, phrase("slurm-step-output")),
}


@dataclass(slots=True)
class SrunStep:
    """One call of ``srun``.

    Attributes:
        options: values by long name; empty for flags.
        behind: whether it runs in the background, so that other steps run at the same time.
    """

    options: dict[str, str] = field(default_factory=dict)
    behind: bool = False


def steps_of(lines: Sequence[str]) -> Iterator[SrunStep]:
    """Yield the calls of ``srun`` in a script, as far as its text shows them."""
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    for line in joined.split("\n"):
        if line.lstrip().startswith("#"):
            continue
        for match in _CALL.finditer(line):
            yield _step(match[1])


def report_steps(lines: Sequence[str], place: DocumentPlace, report: ParseReport) -> None:
    """Report options of steps that have no effect, each option once."""
    told: set[str] = set()
    for step in steps_of(lines):
        for name, value in step.options.items():
            needed, words = _LOST.get(name, (False, None))
            if step.behind and name in _OF_DEVICES:
                needed = True
                words = phrase("slurm-step-devices")
            if words is None or name in told or (name, value) == ("mpi", "none"):
                continue
            told.add(name)
            shown = f"srun --{name}={value}" if value else f"srun --{name}"
            report.leave_out(place, shown, words, needed=needed)


def _step(text: str) -> SrunStep:
    ending = text.rstrip()
    step = SrunStep(behind=ending.endswith("&"))
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


# In the function, options that are parsed one by one precede this list.
_SRUN_WITH_VALUE: Final = "|".join(
    [*(f"-{letter}" for letter in sorted(SHORT_NAMES)), *(f"--{n}" for n in sorted(TAKE_VALUES))]
)

SRUN: Final = """\
srun() (
  nodes=${SLURM_JOB_NUM_NODES:-1} tasks= per=${SLURM_NTASKS_PER_NODE:-1} on=
  each=${SLURM_GPUS_PER_TASK:-} all=${CUDA_VISIBLE_DEVICES:-}
  while [ $# -gt 0 ]; do
    case $1 in
      --) shift; break ;;
      -N|--nodes) nodes=$2; shift 2 ;;
      -N*) nodes=${1#-N}; shift ;;
      --nodes=*) nodes=${1#*=}; shift ;;
      -n|--ntasks) tasks=$2; shift 2 ;;
      -n*) tasks=${1#-n}; shift ;;
      --ntasks=*) tasks=${1#*=}; shift ;;
      --ntasks-per-node) per=$2; shift 2 ;;
      --ntasks-per-node=*) per=${1#*=}; shift ;;
      -w|--nodelist) on=$2; shift 2 ;;
      -w*) on=${1#-w}; shift ;;
      --nodelist=*) on=${1#*=}; shift ;;
      --gpus-per-task) each=$2; shift 2 ;;
      --gpus-per-task=*) each=${1#*=}; shift ;;
      --gpu-bind=none) all=; shift ;;
      @WITH@) shift 2 ;;
      -*) shift ;;
      *) break ;;
    esac
  done
  [ $# -gt 0 ] || exit 0
  here=${SLURM_NODEID:-0} index=0
  if [ -n "$on" ]; then
    nodes=0 index=
    for host in $(printf '%s' "$on" | tr ',' ' '); do
      [ "$host" = "${SLURMD_NODENAME-}" ] && index=$nodes
      nodes=$((nodes + 1))
    done
    if [ -z "$index" ]; then
      case $1 in hostname) printf '%s\\n' "${on%%,*}" ;; esac
      exit 0
    fi
  else
    nodes=${nodes%%-*} index=$here
    if [ -n "$tasks" ] && [ "$tasks" -lt "$nodes" ]; then nodes=$tasks; fi
    [ "$here" -lt "$nodes" ] || exit 0
  fi
  tasks=${tasks:-$((nodes * per))}
  count=$((tasks / nodes)) rest=$((tasks % nodes))
  first=$((index * count + (index < rest ? index : rest)))
  [ "$index" -ge "$rest" ] || count=$((count + 1))
  export SLURM_NTASKS="$tasks" SLURM_NPROCS="$tasks" SLURM_STEP_NUM_NODES="$nodes"
  export WORLD_SIZE="$tasks" LOCAL_WORLD_SIZE="$count"
  local_id=0 pids= status=0 each=${each##*:}
  while [ "$local_id" -lt "$count" ]; do
    rank=$((first + local_id))
    if [ -n "$each" ] && [ -n "$all" ]; then
      own=$((local_id * each + 1))-$((local_id * each + each))
      CUDA_VISIBLE_DEVICES=$(printf '%s' "$all" | cut -d, -f"$own")
      export CUDA_VISIBLE_DEVICES
    fi
    SLURM_PROCID=$rank SLURM_LOCALID=$local_id RANK=$rank LOCAL_RANK=$local_id "$@" <&0 &
    pids="$pids $!" local_id=$((local_id + 1))
  done
  for pid in $pids; do wait "$pid" || status=$?; done
  exit "$status"
)
""".replace("@WITH@", _SRUN_WITH_VALUE)

SCONTROL: Final = """\
scontrol() {
  if [ "${1-}" = show ] && { [ "${2-}" = hostnames ] || [ "${2-}" = hostname ]; }; then
    printf '%s\\n' "${3:-$SLURM_JOB_NODELIST}" | tr ',' '\\n'
  else
    command scontrol "$@"
  fi
}
"""

_SETTINGS: Final = 'export SLURM_SUBMIT_DIR="$PWD"\n'
_BASH_LIKE: Final = re.compile(r"(?:^|/|\s)(?:ba)?sh(?:\s|$)")
_END: Final = "END_OF_SCRIPT"


def uses(program: str, lines: Sequence[str]) -> bool:
    """Return whether a line other than a comment seems to start ``program``."""
    pattern = re.compile(rf"(?:^|[\s;&|(`!{{]){re.escape(program)}(?=\s|$)")
    return any(pattern.search(line) for line in lines if not line.lstrip().startswith("#"))


def is_shell(interpreter: str) -> bool:
    """Return whether an interpreter (without ``#!``) is a shell that can run the functions."""
    return not interpreter or bool(_BASH_LIKE.search(interpreter))


def command_of(interpreter: str, lines: Sequence[str], before: str) -> str:
    """Return the command that corresponds to a batch script.

    Args:
        interpreter: text after ``#!``.
        lines: the script without options.
        before: shell text to run first.
    """
    body = "\n".join(lines).strip("\n")
    if not is_shell(interpreter):
        end = _END
        while end in body:
            end += "_"
        words = " ".join(shlex.quote(word) for word in interpreter.split())
        return (
            f"{_SETTINGS}{before}script=$(mktemp) || exit 1\n"
            f'cat > "$script" <<\'{end}\'\n{body}\n{end}\nexec {words} "$script"\n'
        )
    options = _shell_options(interpreter)
    functions = (SRUN if uses("srun", lines) else "") + (
        SCONTROL if any("scontrol show hostname" in line for line in lines) else ""
    )
    return f"{BASH_PRELUDE}{_SETTINGS}{options}{functions}{before}{body}\n"


def own_lines(command: str) -> str:
    """Return the lines of the user of a translated batch script; other commands are unchanged.

    A page shows them instead of the functions that replace Slurm's programs.
    """
    if not command.startswith(BASH_PRELUDE + _SETTINGS):
        return command
    rest = command.removeprefix(BASH_PRELUDE + _SETTINGS)
    for function in (SRUN, SCONTROL):
        rest = rest.replace(function, "", 1)
    return rest.strip("\n")


def _shell_options(interpreter: str) -> str:
    """Return the options of the ``#!`` line, such as ``-e``, without login shell options."""
    flags = [
        letter
        for word in interpreter.split()[1:]
        if re.fullmatch(r"-[a-zA-Z]+", word)
        for letter in word[1:]
    ]
    wanted = "".join(letter for letter in flags if letter in "euxf")
    return f"set -{wanted}\n" if wanted else ""
