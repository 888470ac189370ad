"""What the calls of srun in a batch script lose is named, however they stand in their lines."""

import time

import pytest

from scheduling.compat.slurm.job import import_sbatch
from scheduling.compat.slurm.script import unset_variables
from scheduling.compat.slurm.shell import command_of, own_lines, steps_of


@pytest.mark.parametrize(
    "line",
    [
        "srun --gpus=1 a &",
        "srun --gpus=1 a & srun --gpus=1 b & wait",
        "srun --gpus=1 a > a.log 2>&1 & wait",
        "srun --gpus=1 a 2>&1 | tee a.log &",
        "srun --gpus=1 a |& tee a.log & wait",
        "srun --gpus=1 bash -c 'a; b && c' &",
        'srun a && { srun --gpus=1 bash -c "a || b" & }',
        "srun a || srun --gpus=1 b &> b.log & wait",
    ],
)
def test_devices_of_a_step_beside_others_are_named(line: str) -> None:
    lost = import_sbatch(f"#!/bin/bash\n#SBATCH --gpus-per-node=2\n{line}\n").unsupported

    assert [(one.value, one.needed) for one in lost] == [('"srun --gpus=1"', True)]


@pytest.mark.parametrize(
    "line",
    [
        "srun --gpus=1 a",
        "srun --gpus=1 a && b &",
        "srun --gpus=1 a >& log",
        "srun --gpus=1 a; b &",
    ],
)
def test_a_step_on_its_own_loses_no_devices(line: str) -> None:
    assert not import_sbatch(f"#!/bin/bash\n#SBATCH --gpus-per-node=2\n{line}\n").unsupported


def test_every_step_of_a_line_counts() -> None:
    line = "srun --mpi=none a && srun --container-image=x b; srun -o log c"

    assert [step.options for step in steps_of([line])] == [
        {"mpi": "none"},
        {"container-image": "x"},
        {"output": "log"},
    ]


@pytest.mark.parametrize("text", ['"', "\"'", ">&", "srun ", "|", "| ", "&>", "a\\'"])
def test_a_line_of_signs_takes_no_longer_than_its_length(text: str) -> None:
    began = time.process_time()

    list(steps_of(["srun " + text * 100_000]))

    assert time.process_time() - began < 5


def test_a_variable_with_a_sign_behind_it_has_no_default() -> None:
    lines = ["$SLURM_JOB_UID-1 ${SLURM_MEM_PER_NODE} ${SLURM_EXPORT_ENV#a}", "${SLURM_ABC:-1}"]

    assert unset_variables([*lines, "${SLURM_DEF-x} ${SLURM_GHI?} $SLURM_JOB_ID"]) == [
        "SLURM_JOB_UID",
        "SLURM_MEM_PER_NODE",
        "SLURM_EXPORT_ENV",
    ]


def test_the_own_lines_of_a_script_are_without_the_functions_that_replace_slurm() -> None:
    lines = ["export A=1", "srun -N1 python3 prepare.py", "scontrol show hostnames", "srun x"]
    command = command_of("/bin/bash -e", lines, "cd /data\n")

    assert "srun() (" in command
    assert own_lines(command) == "\n".join(["set -e", "cd /data", *lines])
    assert own_lines("srun() (\n echo mine\n)\nsrun") == "srun() (\n echo mine\n)\nsrun"
    assert own_lines("python3 train.py\n") == "python3 train.py\n"
