"""Limits of a job's processors, memory and processes by control groups.

Versions 2 and 1 are tried. If this user may create groups of neither version, the job runs without
limits, and the run has a warning.
"""

from __future__ import annotations

import os
import time
from typing import Dict, List, Optional, Sequence, Set, Tuple

from tessera.node import kernel, system

MOUNT = "/sys/fs/cgroup"
PERIOD = 100_000
_CONTROLLERS = ("memory", "cpu")
_PROCESSES = "pids"
_FREEZER = "freezer"
_GUEST_SHARES, _USUAL_SHARES = "2", "1024"


def version() -> str:
    """Return ``v2``, ``v1`` or empty: the version of control groups that this user can create."""
    if _parent_v2() is not None:
        return "v2"
    return "v1" if _parents_v1() else ""


def _own_paths() -> Dict[str, str]:
    """Return this process's group by controller; the key of the unified hierarchy is empty."""
    paths = {}
    for line in system.read_text("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for name in controllers.split(","):
            paths[name] = path
    return paths


def _writable(path: str) -> bool:
    return os.path.isdir(path) and os.access(path, os.W_OK)


def _parent_v2() -> Optional[str]:
    """Return a group below which groups with limits can be created."""
    if not os.path.exists(f"{MOUNT}/cgroup.controllers"):
        return None
    own = MOUNT + _own_paths().get("", "/").rstrip("/")
    _hand_down(MOUNT)
    for parent in (f"{MOUNT}/tessera", os.path.dirname(own)):
        try:
            os.makedirs(parent, exist_ok=True)
        except OSError:
            continue
        if _hand_down(parent) and _writable(parent):
            return parent
    return None


def _hand_down(parent: str) -> bool:
    """Enable limits for child groups one by one, since a node may grant only some of them."""
    _write(f"{parent}/cgroup.subtree_control", f"+{_PROCESSES}")
    granted = [_write(f"{parent}/cgroup.subtree_control", f"+{name}") for name in _CONTROLLERS]
    return any(granted)


def _parents_v1(controllers: Sequence[str] = _CONTROLLERS) -> Dict[str, str]:
    found = {}
    own = _own_paths()
    for controller in controllers:
        parent = f"{MOUNT}/{controller}{own.get(controller, '/').rstrip('/')}"
        if _writable(parent) and os.path.exists(f"{parent}/cgroup.procs"):
            found[controller] = parent
    return found


def _name(run_id: str) -> str:
    return f"tessera-{run_id}"


class Group:
    """The control groups of one run.

    Attributes:
        paths: one directory (version 2) or one for each controller (version 1).
        complete: the limits of processors and memory are in force.
        bounds_processes: whether the number of processes is bounded, too.
    """

    def __init__(
        self, paths: List[str], *, unified: bool, complete: bool, bounds_processes: bool = False
    ) -> None:
        self.paths = paths
        self.unified = unified
        self.complete = complete
        self.bounds_processes = bounds_processes

    def hold(self, pid: int) -> bool:
        """Move a process and its later children into the groups; return False if that is not
        possible.

        The kernel takes about 10 ms for it: it waits until every processor has passed a quiescent
        state (``cgroup_threadgroup_rwsem``). Use ``fork`` for a child of this process.
        """
        entered = [_write(f"{path}/cgroup.procs", str(pid)) for path in self.paths]
        return all(entered)

    def enter(self) -> bool:
        """Move this process, which must have only one thread, into the groups; as ``hold``.

        With version 1, a thread that moves itself does not wait (Linux 5.6).
        """
        name = "cgroup.procs" if self.unified else "tasks"
        entered = [_write(f"{path}/{name}", "0") for path in self.paths]
        return all(entered)

    def oom_kills(self) -> int:
        """Return the number of OOM kills in the group."""
        name = "memory.events" if self.unified else "memory.oom_control"
        for path in self.paths:
            for line in system.read_text(f"{path}/{name}").splitlines():
                key, _, value = line.partition(" ")
                if key == "oom_kill" and value.isdigit():
                    return int(value)
        return 0

    def freeze(self, *, frozen: bool) -> bool:
        """Freeze or thaw all processes in the group; False if this group cannot do it."""
        name, value = ("cgroup.freeze", "1" if frozen else "0")
        if not self.unified:
            name, value = ("freezer.state", "FROZEN" if frozen else "THAWED")
        return any(_write(f"{path}/{name}", value) for path in self.paths)

    def demote(self, *, is_guest: bool) -> bool:
        """Let the group use only idle processor time, or end that; returns whether it worked."""
        idle = any(_write(f"{path}/cpu.idle", "1" if is_guest else "0") for path in self.paths)
        name, usual = ("cpu.weight", "100") if self.unified else ("cpu.shares", _USUAL_SHARES)
        least = "1" if self.unified else _GUEST_SHARES
        share = least if is_guest else usual
        return any(_write(f"{path}/{name}", share) for path in self.paths) or idle

    def remove(self) -> None:
        """Delete the groups, which must be empty of processes."""
        for path in self.paths:
            _remove(path)


def fork(group: Optional[Group], spaces: int = 0) -> Tuple[int, bool]:
    """Fork a child that is in the groups of a run from its first instruction on.

    Unlike a move, it does not wait: with version 2, the kernel creates the child in the group, and
    with version 1, the child moves itself.

    Args:
        group: None for a run without groups.
        spaces: the child's new namespaces, see ``kernel.fork_into``.

    Returns:
        As ``os.fork``; and in the child, whether it is in all groups.
    """
    if group is not None and group.unified:
        try:
            descriptor = os.open(group.paths[0], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                return kernel.fork_into(spaces, descriptor), True
            finally:
                os.close(descriptor)
        except OSError:
            pass  # an older kernel or a seccomp filter refuses the call
    pid = kernel.fork_into(spaces) if spaces else os.fork()
    return pid, pid == 0 and group is not None and group.enter()


def create(
    run_id: str, cpus: float, memory_bytes: int, processes: int = 0, *, is_guest: bool = False
) -> Optional[Group]:
    """Create the groups of a run with its limits; None if this node grants none.

    Args:
        run_id: ID of the run.
        cpus: processors, 0 for no limit.
        memory_bytes: memory, 0 for no limit.
        processes: processes and threads together, 0 for no limit.
        is_guest: the run is a guest of a device, which can be frozen and demoted.
    """
    parent = _parent_v2()
    if parent is not None:
        return _created_v2(f"{parent}/{_name(run_id)}", _limits_v2(cpus, memory_bytes), processes)
    wanted = _limits_v1(cpus, memory_bytes)
    parents = _parents_v1()
    more = ([_PROCESSES] if processes else []) + ([_FREEZER] if is_guest else [])
    parents.update(_parents_v1(more))
    if not parents:
        return None
    paths = {name: f"{parents[name]}/{_name(run_id)}" for name in wanted if name in parents}
    done = [_apply(path, wanted[name]) for name, path in paths.items()]
    is_bound = False
    if processes and _PROCESSES in parents:
        path = paths[_PROCESSES] = f"{parents[_PROCESSES]}/{_name(run_id)}"
        is_bound = _apply(path, {"pids.max": str(processes)})
    for name in (_FREEZER, "cpu") if is_guest else ():
        if name in parents and name not in paths:
            paths[name] = f"{parents[name]}/{_name(run_id)}"
            _apply(paths[name], {})
    return Group(
        [path for path in paths.values() if os.path.isdir(path)],
        unified=False,
        complete=len(done) == len(wanted) and all(done),
        bounds_processes=is_bound,
    )


def _created_v2(path: str, limits: Dict[str, str], processes: int) -> Optional[Group]:
    complete = _apply(path, limits)
    if not os.path.isdir(path):
        return None
    if limits:
        _write(f"{path}/memory.swap.max", "0")
        _write(f"{path}/memory.oom.group", "1")
    is_bound = processes > 0 and _write(f"{path}/pids.max", str(processes))
    return Group([path], unified=True, complete=complete, bounds_processes=is_bound)


def _limits_v2(cpus: float, memory_bytes: int) -> Dict[str, str]:
    limits = {}
    if memory_bytes:
        limits["memory.max"] = str(memory_bytes)
    if cpus:
        limits["cpu.max"] = f"{max(1000, int(cpus * PERIOD))} {PERIOD}"
    return limits


def _limits_v1(cpus: float, memory_bytes: int) -> Dict[str, Dict[str, str]]:
    limits = {}
    if memory_bytes:
        limits["memory"] = {"memory.limit_in_bytes": str(memory_bytes)}
    if cpus:
        limits["cpu"] = {"cpu.cfs_quota_us": str(max(1000, int(cpus * PERIOD)))}
    return limits


def _apply(path: str, limits: Dict[str, str]) -> bool:
    try:
        os.makedirs(path, exist_ok=True)
    except OSError:
        return False
    done = [_write(f"{path}/{name}", value) for name, value in limits.items()]
    return all(done)


def _write(path: str, value: str) -> bool:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(descriptor, value.encode("ascii"))
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _existing(run_id: str) -> List[str]:
    own = _own_paths()
    parents = [f"{MOUNT}/tessera", os.path.dirname(MOUNT + own.get("", "/").rstrip("/"))]
    names = (*_CONTROLLERS, _PROCESSES, _FREEZER)
    parents += [f"{MOUNT}/{name}{own.get(name, '/').rstrip('/')}" for name in names]
    paths = [f"{parent}/{_name(run_id)}" for parent in parents]
    return [path for path in paths if os.path.isdir(path)]


def members(run_id: str) -> Set[int]:
    """Return the pids in the groups of a run."""
    return {
        int(pid)
        for path in _existing(run_id)
        for pid in system.read_text(f"{path}/cgroup.procs").split()
    }


def thaw(run_id: str) -> None:
    """Thaw the groups of a run: with version 1, a frozen process cannot even be killed."""
    paths = _existing(run_id)
    Group(paths, unified=False, complete=False).freeze(frozen=False)
    Group(paths, unified=True, complete=False).freeze(frozen=False)


def remove(run_id: str) -> None:
    """Delete all remaining groups of a run."""
    for path in _existing(run_id):
        _remove(path)


def _remove(path: str) -> None:
    for _ in range(50):
        try:
            os.rmdir(path)
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.002)
        else:
            return
