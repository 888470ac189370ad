"""Isolation levels of this node: tested by trials, and chosen for each run.

The node's owner may limit them, and show paths to all jobs, in ``~/.tessera/isolation.json``:

    {"strongest": "none", "visible_paths": [{"path": "/srv/data", "writable": false}],
     "job_network": "auto", "hidden_paths": ["/srv/portal"], "processes": 16384}
"""

from __future__ import annotations

import errno
import os
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

from tessera import isolation, job_networks, protocol
from tessera.isolation import (
    CONTAINER,
    LEVELS,
    MOST_PROCESSES,
    NAMESPACE,
    NONE,
    PLAIN_LEVELS,
    RESERVED_UIDS,
    SHARED_UID,
    USER,
    IsolationProbe,
    VisiblePath,
)
from tessera.node import background, engine, helped, system
from tessera.node.boxes import Sandbox, SandboxError, check_end
from tessera.node.helper_requests import LEAST_UID
from tessera.node.sandbox_root import Plan
from tessera.protocol import ProtocolError, RunSpec
from tessera.run_spec import paths_of
from tessera.wire import Fields

DECLARATION_FILE = "isolation.json"
LEAST_PROCESSES, MOST_DECLARED = 16, 1 << 22
_PID_MAX = "/proc/sys/kernel/pid_max"
_RESTRICTED = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
_CLONE = "/proc/sys/kernel/unprivileged_userns_clone"
_MOST = "/proc/sys/user/max_user_namespaces"
_known: Dict[str, List[IsolationProbe]] = {}


class Declaration(NamedTuple):
    """The declaration of the node's owner.

    Attributes:
        strongest: the strongest allowed level.
        visible_paths: visible to the jobs of all tenants.
        job_network: one of ``job_networks.SETTINGS``, or empty. The portal's setting of the
            node overrides it.
        hidden_paths: directories that stay hidden from all jobs.
        processes: limit of processes and threads of a job together.
    """

    strongest: str = CONTAINER
    visible_paths: Tuple[VisiblePath, ...] = ()
    job_network: str = ""
    hidden_paths: Tuple[str, ...] = ()
    processes: int = MOST_PROCESSES


def declaration(root: str) -> Declaration:
    """Read the declaration of a node; a node without the file has none.

    Raises:
        ProtocolError: the declaration is malformed.
    """
    path = os.path.join(root, DECLARATION_FILE)
    if not os.path.lexists(path):
        return Declaration(processes=usual_processes(_setting(_PID_MAX)))
    take = Fields(system.read_json(path, any_owner=True), DECLARATION_FILE)
    strongest = take.choice("strongest", CONTAINER, LEVELS)
    visible = take.items("visible_paths", isolation.MAX_VISIBLE_PATHS)
    job_network = take.choice("job_network", "", ("", *job_networks.SETTINGS))
    hidden = tuple(paths_of(take, "hidden_paths"))
    usual = usual_processes(_setting(_PID_MAX))
    processes = take.integer("processes", usual, LEAST_PROCESSES, MOST_DECLARED)
    take.finish()
    paths = tuple(VisiblePath.from_json(item) for item in visible)
    return Declaration(strongest, paths, job_network, hidden, processes)


def usual_processes(pid_max: Optional[int]) -> int:
    """Return a node's default limit: half of its process ids (``pid_max``, None if unknown)."""
    return min(MOST_PROCESSES, (pid_max or MOST_PROCESSES) // 2)


# -- choosing ------------------------------------------------------------------------------------


def known(root: str) -> List[IsolationProbe]:
    """Return the levels of this node for plain jobs, tried once per process."""
    if root not in _known:
        _known[root] = _in_child(lambda: probe(root, ""))
    return _known[root]


def remembered(root: str) -> Optional[List[IsolationProbe]]:
    """Return the known levels of this node; None before the first trial."""
    return _known.get(root)


def remember(root: str, probes: List[IsolationProbe]) -> None:
    """Store the outcomes for later choices; if no level is available, try again later."""
    if any(probe.available for probe in probes):
        _known[root] = probes
    else:
        _known.pop(root, None)


def level_for(root: str, spec: RunSpec) -> str:
    """Return the best level of this node for a run, at least the requested one.

    Raises:
        ProtocolError: the node does not reach the requested level, its levels are unknown,
            its declaration is malformed, or the user id is not allowed for a tenant.
    """
    if spec.container is not None:
        return CONTAINER
    if spec.uid is not None and (spec.uid < LEAST_UID or spec.uid in RESERVED_UIDS):
        raise ProtocolError("bad-uid", f"{spec.uid} is not the user id of a tenant", protocol.NODE)
    levels = tuple(level for level in PLAIN_LEVELS if level != USER or spec.uid is not None)
    # Without a sandbox, a storage has no mount point and cannot be read-only.
    least = NAMESPACE if spec.storage and spec.isolation == NONE else spec.isolation
    try:
        declaration(root)
        probes = known(root)
        best = isolation.best_available(probes, of=levels)
        message = f"the run needs isolation {least}; this node offers {best}"
    except ProtocolError as error:
        probes, best, message = [], NONE, error.message
    is_offered = any(probe.level == best and probe.available for probe in probes)
    if is_offered and isolation.at_least(best, least):
        return best
    _known.pop(root, None)  # detects repairs of the node without a restart of the session
    raise ProtocolError(isolation.NOT_AVAILABLE, message, protocol.NODE)


# -- trying --------------------------------------------------------------------------------------


def probe(root: str, container_engine: str, gpu_fault: str = "") -> List[IsolationProbe]:
    """Try each level with a temporary sandbox. Call it in a child: it is a subreaper.

    Args:
        root: the node's directory ``~/.tessera``.
        container_engine: the engine's version, empty without one.
        gpu_fault: the reason why the engine cannot give the node's GPUs to containers; empty if it
            can.
    """
    try:
        limit = declaration(root).strongest
    except ProtocolError as error:
        cause = isolation.DECLARATION_MALFORMED
        return [_missing(level, cause, error.message) for level in LEVELS]
    found = [IsolationProbe(NONE, available=True)]
    for level in LEVELS[1:]:
        if not isolation.at_least(limit, level):
            detail = f"{DECLARATION_FILE} allows {limit} at most"
            found.append(_missing(level, isolation.TURNED_OFF, detail))
        elif level == CONTAINER:
            found.append(_container(container_engine, gpu_fault))
        else:
            found.append(_tried(level))
    return found


def _in_child(work: Callable[[], List[IsolationProbe]]) -> List[IsolationProbe]:
    """Probe in a child, which adopts and reaps the processes of its trials."""
    done = background.fork_work(
        lambda: {"isolation": [one.to_json() for one in work()]}, lambda: None
    )
    outcome = background.read_outcome(system.read_all(done.descriptor, 1 << 20))
    os.waitpid(done.pid, 0)
    items = outcome.get("isolation")
    if not isinstance(items, list):
        return [
            _missing(level, isolation.NOT_TRIED, "the test process ended early")
            for level in LEVELS
        ]
    return [IsolationProbe.from_json(item) for item in items]


def _missing(level: str, cause: str, detail: str) -> IsolationProbe:
    return IsolationProbe(level, available=False, cause=cause, detail=detail[:300])


def _container(found: str, gpu_fault: str) -> IsolationProbe:
    if found and gpu_fault:
        return _missing(CONTAINER, isolation.NO_GPUS_IN_CONTAINERS, f"{found}: {gpu_fault}")
    if found:
        return IsolationProbe(CONTAINER, available=True, detail=found)
    detail = f"no container engine responds at {' or '.join(engine.sockets())}"
    return _missing(CONTAINER, isolation.NO_CONTAINER_ENGINE, detail)


def _tried(level: str) -> IsolationProbe:
    """Try a level once; a runner that is root needs no user namespace for it."""
    if is_helped(level):
        return _tried_helper()
    uid = SHARED_UID if os.getuid() == 0 else None
    try:
        try_out(uid)
    except SandboxError as error:
        cause = cause_of(error.stage, error.number, uid)
        return _missing(level, cause, f"{error.stage}: {error}")
    return IsolationProbe(level, available=True)


def is_helped(level: str) -> bool:
    """Return whether the helper creates the sandboxes of a level: the runner is not root."""
    return level == USER and os.getuid() != 0


def make_ready(root: str) -> None:
    """Start the helper if jobs of this node need it; returns at once."""
    if any(one.available and is_helped(one.level) for one in known(root)):
        helped.make_ready()


def _tried_helper() -> IsolationProbe:
    try:
        helped.check()
        helped.try_out(_trial(SHARED_UID))
    except helped.HelperError as error:
        return _missing(USER, error.cause, f"{error}")
    except SandboxError as error:
        cause = cause_of(error.stage, error.number, SHARED_UID)
        return _missing(USER, cause, f"{error.stage}: {error}")
    finally:
        helped.close()
    return IsolationProbe(USER, available=True, detail=f"by {helped.PROGRAM}")


def try_out(
    uid: Optional[int],
    connect: Optional[Callable[[int], Callable[[], None]]] = None,
    blocked: Tuple[str, ...] = (),
) -> None:
    """Create a sandbox without a run, and execute a program in it to its end.

    Args:
        uid: user of the job; None for a user namespace.
        connect: connects the sandbox's own network, see ``Sandbox.start``; None without one.
        blocked: unreachable networks.

    Raises:
        SandboxError: the sandbox could not be created, or the program failed.
    """
    system.prctl(system.PR_SET_CHILD_SUBREAPER, 1)
    plan = _trial(uid)._replace(own_network=connect is not None, blocked=blocked)
    null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    box = Sandbox(plan)
    try:
        box.start(null, connect=connect)
        os.waitpid(box.pid, 0)
        end = box.end()
    finally:
        os.close(null)
        box.close()
    check_end(plan, end)


def _trial(uid: Optional[int]) -> Plan:
    """Build the plan of a sandbox without a run."""
    return Plan(
        uid=uid,
        binds=[],
        hidden=[],
        devices=[],
        secrets=None,
        owned=[],
        owners=[],
        group=os.getgid(),
        tmp_bytes=1 << 20,
        shm_bytes=1 << 20,
        file_bytes=0,
        home="/tmp",  # noqa: S108 - of the sandbox
        directory="/",
        arguments=["/bin/sh", "-c", "exit 0"],
        environment={},
    )


def cause_of(stage: str, number: int, uid: Optional[int]) -> str:
    """Return the cause, one of ``isolation.CAUSES``, of a failed trial.

    Args:
        stage: stage at which the sandbox failed.
        number: errno.
        uid: None if the sandbox needed a user namespace.
    """
    if uid is None and stage == "unshare":
        return _cause_of_unshare(number)
    denied = number in (errno.EPERM, errno.EACCES)
    if uid is None and denied and stage in ("map", "mount", "identity"):
        if _setting(_RESTRICTED) == 1:
            return isolation.APPARMOR
        return isolation.SECCOMP if _filtered() else isolation.MOUNT_REFUSED
    if stage in ("mount", "proc", "seal") and denied:
        return isolation.MOUNT_REFUSED
    if stage == "unshare" and denied:
        return isolation.SECCOMP
    return isolation.TRIAL_FAILED


def _cause_of_unshare(number: int) -> str:
    if number in (errno.ENOSPC, errno.EUSERS) and _setting(_MOST) == 0:
        return isolation.USERNS_LIMIT
    if number in (errno.EINVAL, errno.ENOSYS):
        return isolation.NOT_SUPPORTED
    if number in (errno.EPERM, errno.EACCES):
        if _setting(_CLONE) == 0:
            return isolation.USERNS_DISABLED
        if _setting(_RESTRICTED) == 1:
            return isolation.APPARMOR
        return isolation.SECCOMP if _filtered() else isolation.USERNS_DISABLED
    return isolation.TRIAL_FAILED


def _setting(path: str) -> Optional[int]:
    text = system.read_text(path).strip()
    return int(text) if text.isdigit() else None


def _filtered() -> bool:
    """Return whether a seccomp filter applies to this process, as in container engines."""
    return "Seccomp:\t2" in system.read_text("/proc/self/status")
