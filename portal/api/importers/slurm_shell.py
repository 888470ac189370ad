"""What a batch script finds here in place of Slurm's own programs: ``srun`` and ``scontrol``.

Every node runs the whole script. ``srun`` starts the tasks of its own node and nothing on others,
since these run the same line; a step that is for other nodes only is passed over.
"""

import re
import shlex
from collections.abc import Sequence
from typing import Final

from portal.api.importers.scripts import BASH_PRELUDE
from portal.api.importers.slurm_steps import SHORT_NAMES, TAKE_VALUES

# Options that are read one by one stand before this in the function.
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
    """Whether some line that is no comment seems to start ``program``."""
    pattern = re.compile(rf"(?:^|[\s;&|(`!{{]){re.escape(program)}(?=\s|$)")
    return any(pattern.search(line) for line in lines if not line.lstrip().startswith("#"))


def is_shell(interpreter: str) -> bool:
    """Whether a ``#!`` line (without the mark) names a shell that can read our functions."""
    return not interpreter or bool(_BASH_LIKE.search(interpreter))


def command_of(interpreter: str, lines: Sequence[str], before: str) -> str:
    """The command that does what the batch script does.

    Args:
        interpreter: what stands after ``#!``.
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


def _shell_options(interpreter: str) -> str:
    """Options of the ``#!`` line, such as ``-e``; those of a login shell say nothing here."""
    flags = [
        letter
        for word in interpreter.split()[1:]
        if re.fullmatch(r"-[a-zA-Z]+", word)
        for letter in word[1:]
    ]
    wanted = "".join(letter for letter in flags if letter in "euxf")
    return f"set -{wanted}\n" if wanted else ""
