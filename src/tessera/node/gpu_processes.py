"""Processes on GPUs that belong to no run: started without Tessera, or left over by a run.

A process of a run descends from its runner or from its main process (a container's processes run
below the engine), is in its session, or is in its control groups.
"""

from __future__ import annotations

import os
from collections import defaultdict
from typing import Dict, List, Optional, Sequence, Set

from tessera import hardware, protocol
from tessera.hardware import Condition
from tessera.node import cgroups, system
from tessera.node.gpus import GpuProcess
from tessera.node.runs import Store
from tessera.node.system import Process
from tessera.protocol import ProtocolError, RunStatus

LEAST_SECONDS = 30.0
"""Age from which a process counts: a run that starts or ends is recorded by then."""
INITIAL_PID_NAMESPACE = 0xEFFFFFFC
_SERVICES = ("nvidia-cuda-mps", "nv-hostengine")
"""Services of the driver that use GPUs themselves, as the kernel cuts their names."""
_MOST_NAMED, _MOST_PARENTS = 5, 1000


def foreign(
    root: str, found: Sequence[GpuProcess], *, least_seconds: float = LEAST_SECONDS
) -> List[Condition]:
    """Return one condition for each GPU on which processes of no run compute.

    A process that ended since the reading is left out. In a PID namespace of its own, a node
    cannot identify the processes that the driver reports, and returns no condition.

    Args:
        root: the node's directory ``~/.tessera``.
        found: processes that the driver has reported.
        least_seconds: age from which a process counts.
    """
    if not found or not _sees_all_processes():
        return []
    latest = system.boot_clock() - least_seconds
    entries = {pid: entry for pid in {one.pid for one in found} if (entry := system.entry(pid))}
    old = {pid: one for pid, one in entries.items() if one.start / system.CLOCK_TICKS <= latest}
    if not old:
        return []
    mine = _of_runs(Store(root))
    if mine is None:
        return []
    strangers = {
        pid for pid, entry in old.items() if not _belongs(entry, mine) and not _is_service(pid)
    }
    by_gpu: Dict[str, List[GpuProcess]] = defaultdict(list)
    for one in sorted(found):
        if one.pid in strangers:
            by_gpu[one.uuid].append(one)
    return [
        Condition(hardware.FOREIGN_PROCESS, _detail(processes, old), uuid=uuid)
        for uuid, processes in by_gpu.items()
    ]


def _sees_all_processes() -> bool:
    try:
        return os.stat("/proc/self/ns/pid").st_ino == INITIAL_PID_NAMESPACE
    except OSError:
        return False


def _of_runs(store: Store) -> Optional[Set[int]]:
    """Return the runners, main processes and members of control groups of all running runs.

    None if the record of a run cannot be read, or if a run has no control group: its processes,
    or those that have left its session, would look foreign.
    """
    found: Set[int] = set()
    if not os.path.isdir(store.runs):
        return found  # the node has not had a session yet
    for run in store.all_runs():
        try:
            status = run.recorded()
        except ProtocolError:
            continue
        if status.phase == protocol.UNKNOWN:
            return None
        if status.phase == protocol.EXITED:
            continue
        roots, members = _roots(status), cgroups.members(run.run_id)
        if roots and not members:
            return None
        found |= roots | members
    return found


def _roots(status: RunStatus) -> Set[int]:
    """Return the recorded processes of a run; a reused pid has another start time."""
    recorded = ((status.runner_pid, status.runner_start), (status.pid, status.pid_start))
    found = set()
    for pid, start in recorded:
        entry = system.entry(pid) if pid else None
        if entry is not None and entry.start == start:
            found.add(entry.pid)
    return found


def _belongs(process: Process, mine: Set[int]) -> bool:
    """Return whether a process, its session or one of its ancestors is a process of a run."""
    if process.sid in mine:
        return True
    for _ in range(_MOST_PARENTS):
        if process.pid in mine:
            return True
        parent = system.entry(process.ppid) if process.ppid else None
        if parent is None:
            return False
        process = parent
    return False


def _is_service(pid: int) -> bool:
    try:
        owner = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return False
    return owner in (0, os.getuid()) and _name(pid) in _SERVICES


def _name(pid: int) -> str:
    """Return the name of a process, which the process itself may have chosen."""
    name = system.read_text(f"/proc/{pid}/comm").strip()
    return "".join(char if char.isprintable() else "?" for char in name)[:15]


def _detail(processes: Sequence[GpuProcess], entries: Dict[int, Process]) -> str:
    """Describe the processes of a GPU.

    Memory is in whole GiB, since each change of an inventory requests a round.
    """
    texts = []
    for one in processes[:_MOST_NAMED]:
        words = [f"pid {one.pid}", _name(one.pid)]
        if one.memory_bytes is not None:
            words.append(f"{round(one.memory_bytes / 2**30)} GiB")
        if entries[one.pid].state == "Z":
            words.append("zombie")
        texts.append(" ".join(filter(None, words)))
    more = len(processes) - _MOST_NAMED
    return "; ".join((*texts, f"{more} more") if more > 0 else texts)
