"""What batch scripts find in place of Slurm's programs, run by a real shell."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from scheduling.compat.slurm.job import import_sbatch

SHELLS = [shell for shell in ("sh", "bash") if shutil.which(shell)]


def run(
    tmp_path: Path,
    shell: str,
    body: str,
    *,
    node: int = 0,
    nodes: int = 2,
    per: int = 1,
    more: Mapping[str, str] | None = None,
) -> str:
    """What one node's copy of a script prints, which finds ``more`` beside Slurm's variables."""
    text = f"#!/bin/sh\n#SBATCH -N {nodes} --gpus-per-node=1\n{body}\n"
    command = import_sbatch(text).spec["roles"]["worker"]["command"]
    script = tmp_path / "script"
    script.write_text(command.partition("\n")[2])
    hosts = [f"10.0.0.{number + 1}" for number in range(nodes)]
    env = {
        "PATH": os.environ["PATH"],
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_NODEID": str(node),
        "SLURMD_NODENAME": hosts[node],
        "SLURM_JOB_NODELIST": ",".join(hosts),
        "SLURM_NTASKS_PER_NODE": str(per),
        **(more or {}),
    }
    done = subprocess.run(
        [str(shutil.which(shell)), str(script)],
        env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return f"{done.stdout}{done.stderr}[{done.returncode}]"


@pytest.mark.parametrize("shell", SHELLS)
def test_srun_starts_the_tasks_of_its_own_node(tmp_path: Path, shell: str) -> None:
    shown = "$SLURM_PROCID.$SLURM_LOCALID.$RANK.$WORLD_SIZE"
    body = f"srun --cpu-bind=none -c 4 sh -c 'echo {shown}' | sort"

    first = run(tmp_path, shell, body, per=2)
    second = run(tmp_path, shell, body, per=2, node=1)

    assert first == "0.0.0.4\n1.1.1.4\n[0]"
    assert second == "2.0.2.4\n3.1.3.4\n[0]"


@pytest.mark.parametrize("shell", SHELLS)
def test_tasks_are_dealt_out_evenly_over_the_nodes(tmp_path: Path, shell: str) -> None:
    body = "srun -n 3 sh -c 'echo $SLURM_PROCID' | sort"

    assert run(tmp_path, shell, body) == "0\n1\n[0]"
    assert run(tmp_path, shell, body, node=1) == "2\n[0]"


@pytest.mark.parametrize("shell", SHELLS)
def test_a_step_on_one_node_runs_there_and_nowhere_else(tmp_path: Path, shell: str) -> None:
    body = "srun --nodes=1 --ntasks=1 echo here; srun -N1 -n1 -w 10.0.0.2 echo there"

    assert run(tmp_path, shell, body) == "here\n[0]"
    assert run(tmp_path, shell, body, node=1) == "there\n[0]"


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("#!/bin/bash", "srun -N1 -n1"),
        ("#!/usr/bin/env python3", "SLURM_NODEID is 0"),
    ],
)
def test_that_every_node_runs_the_script_is_said_with_what_helps(line: str, advice: str) -> None:
    def told(nodes: int) -> list[str]:
        text = f"{line}\n#SBATCH -N {nodes} --gpus-per-node=1\nprint(7)\n"
        warnings = [remark.message for remark in import_sbatch(text).warnings]
        return [words for words in warnings if "every node" in words]

    assert [advice in words for words in told(2)] == [True]
    assert told(1) == []


@pytest.mark.parametrize("shell", SHELLS)
def test_what_is_to_run_once_runs_once_as_the_warning_says(tmp_path: Path, shell: str) -> None:
    body = """set -e
srun -N1 -n1 echo step
if [ "$SLURM_NODEID" = 0 ]; then echo guarded; fi"""

    assert run(tmp_path, shell, body, nodes=3) == "step\nguarded\n[0]"
    assert run(tmp_path, shell, body, nodes=3, node=2) == "[0]"


@pytest.mark.parametrize("shell", SHELLS)
def test_the_address_of_the_first_node_is_found_as_scripts_do_it(
    tmp_path: Path, shell: str
) -> None:
    body = (
        'nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")\n'
        "set -- $nodes\n"
        'head=$(srun --nodes=1 --ntasks=1 -w "$1" hostname --ip-address)\n'
        'echo "$# $head"'
    )

    assert run(tmp_path, shell, body, node=1) == "2 10.0.0.1\n[0]"


@pytest.mark.parametrize("shell", SHELLS)
def test_srun_ends_as_its_tasks_do(tmp_path: Path, shell: str) -> None:
    body = "srun sh -c 'exit 7'; echo $?; srun true && echo fine"

    assert run(tmp_path, shell, body, per=2) == "7\nfine\n[0]"


@pytest.mark.parametrize("shell", SHELLS)
def test_no_value_of_an_option_of_srun_is_taken_for_the_command(
    tmp_path: Path, shell: str
) -> None:
    options = "--cpus-per-gpu 8 --mem-per-gpu 4G -C a100 -r 0 -W 30 --mpi none -K -l -u -c8"

    assert run(tmp_path, shell, f"srun {options} echo fine") == "fine\n[0]"


@pytest.mark.parametrize("shell", SHELLS)
def test_each_task_sees_its_own_devices_where_they_are_shared_out_by_task(
    tmp_path: Path, shell: str
) -> None:
    body = "sh -c 'echo $SLURM_LOCALID:$CUDA_VISIBLE_DEVICES' | sort; echo $CUDA_VISIBLE_DEVICES"
    found = {"CUDA_VISIBLE_DEVICES": "1,3,4,6"}
    by_task = {**found, "SLURM_GPUS_PER_TASK": "2"}

    def shown(call: str, more: Mapping[str, str]) -> str:
        return run(tmp_path, shell, f"{call} {body}", per=2, more=more)

    assert shown("srun", by_task) == "0:1,3\n1:4,6\n1,3,4,6\n[0]"
    assert shown("srun --gpus-per-task=a100:1", found) == "0:1\n1:3\n1,3,4,6\n[0]"
    assert shown("srun", found) == "0:1,3,4,6\n1:1,3,4,6\n1,3,4,6\n[0]"
    assert shown("srun --gpu-bind=none", by_task) == "0:1,3,4,6\n1:1,3,4,6\n1,3,4,6\n[0]"


def outcome_of(tmp_path: Path, text: str) -> tuple[str, int]:
    """What a whole script prints as a command, and its exit status."""
    script = tmp_path / "command"
    script.write_text(import_sbatch(text).spec["roles"]["worker"]["command"])
    done = subprocess.run(
        ["/bin/sh", str(script)], capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout, done.returncode


def test_a_script_of_another_language_runs_with_its_interpreter(tmp_path: Path) -> None:
    text = "#!/usr/bin/env python3\n#SBATCH -G 1\nprint('END_OF_SCRIPT', 1 + 1)\n"

    assert outcome_of(tmp_path, text) == ("END_OF_SCRIPT 2\n", 0)


def test_options_of_the_first_line_hold(tmp_path: Path) -> None:
    text = "#!/bin/sh -e\n#SBATCH -G 1\nfalse\necho never\n"

    assert outcome_of(tmp_path, text) == ("", 1)


def test_a_notice_to_leave_reaches_the_script_as_the_signal_it_wants(tmp_path: Path) -> None:
    text = (
        "#!/bin/sh\n#SBATCH -G 1 --signal=B:USR1@10\n"
        "trap 'echo saved; exit 0' USR1\nkill -TERM $$\nsleep 0.1\necho lost\n"
    )

    assert outcome_of(tmp_path, text) == ("saved\n", 0)
