"""Identity of this job from its environment."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Optional


@dataclass(frozen=True)
class Job:
    """The process within its job; outside a job, a world of one process.

    Attributes:
        id, name, attempt: ID, name and attempt of the job; empty outside a job.
        role, rank: role and rank of this member of the gang.
        world_size, node_rank, nodes, local_rank: as for torchrun.
        run_dir: the member's directory on the node; empty outside a job.
    """

    id: str
    name: str
    attempt: str
    role: str
    rank: int
    world_size: int
    node_rank: int
    nodes: int
    local_rank: int
    master_addr: str
    master_port: int
    run_dir: str


def job() -> Job:
    """Return the job of this process."""
    return Job(
        id=os.environ.get("TESSERA_JOB_ID", ""),
        name=os.environ.get("TESSERA_JOB_NAME", ""),
        attempt=os.environ.get("TESSERA_JOB_ATTEMPT", ""),
        role=os.environ.get("TESSERA_JOB_ROLE", ""),
        rank=_number("TESSERA_JOB_RANK", 0),
        world_size=_number("WORLD_SIZE", 1),
        node_rank=_number("NODE_RANK", 0),
        nodes=_number("NNODES", 1),
        local_rank=_number("LOCAL_RANK", 0),
        master_addr=os.environ.get("MASTER_ADDR", "127.0.0.1"),
        master_port=_number("MASTER_PORT", 29500),
        run_dir=os.environ.get("TESSERA_JOB_RUN_DIR", ""),
    )


def device() -> str:
    """Return PyTorch's name of this process's device: ``cpu``, or ``cuda`` with its number."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return "cpu"
    mine = _number("TESSERA_JOB_PROCESS_DEVICE", _number("LOCAL_RANK", 0))
    return f"cuda:{mine % torch.cuda.device_count()}"


def _number(name: str, default: int) -> int:
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        return default


def secret(name: str) -> Optional[str]:
    """Return a secret of the job, or None."""
    directory = os.environ.get("TESSERA_JOB_SECRETS_DIR")
    if not directory or os.path.basename(name) != name:
        return None
    try:
        with open(os.path.join(directory, name), encoding="utf-8") as file:
            return file.read()
    except OSError:
        return None
