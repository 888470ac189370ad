"""Variables of Slurm's that a batch script reads, and those of them that no job finds here."""

import re
from collections.abc import Sequence
from typing import Final

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
"""What a job finds, from its node, from the options of its script or from ``srun``."""

# One with a default of its own (${NAME:-1}) may be missing.
_READ: Final = re.compile(r"\$(?:\{(SLURM_[A-Z_]+)(?![A-Z_]|:?[-=+?])|(SLURM_[A-Z_]+))")
_SET: Final = re.compile(r"(?:^|[\s;])(SLURM_[A-Z_]+)=", re.MULTILINE)


def unset_variables(lines: Sequence[str]) -> list[str]:
    """The variables that a script reads, sets nowhere and does not find, in order."""
    text = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    read = dict.fromkeys(match[1] or match[2] for match in _READ.finditer(text))
    return [name for name in read if name not in FOUND.union(_SET.findall(text))]
