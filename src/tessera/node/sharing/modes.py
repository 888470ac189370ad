"""Sharing modes of the node's devices, found by trials instead of versions.

A mode is offered only if everything that it promises was tried: a child is frozen and thawed,
the control daemon of MPS answers. ``exclusive`` needs nothing and is not listed; instances of MIG
are devices of their own. Programs without the library are not admitted to GPUs: kernels that they
have queued go on after a freeze, and nobody has measured for how long.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from typing import Callable, List, Optional, Sequence

from tessera.device_sharing import COOPERATIVE, MPS, SLOT, TIME_SLICE
from tessera.node import cgroups, system
from tessera.protocol import Device

_STOPPED_SECONDS = 1.0
_MPS_SECONDS = 2.0
_MPS_CONTROL = "nvidia-cuda-mps-control"
_PROGRAMS = ("/usr/bin", "/usr/local/bin", "/usr/local/nvidia/bin")
_RUN_ID = "{:016x}.probe.0"


def with_modes(
    devices: Sequence[Device],
    *,
    can_freeze: Optional[Callable[[], str]] = None,
    has_mps: Optional[Callable[[], bool]] = None,
) -> List[Device]:
    """Return the devices with the sharing modes that the node can offer, best first.

    A node on which no program can be frozen offers none: nothing would stop a guest whose
    coordinator has ended.

    Args:
        devices: the node's devices.
        can_freeze: trial of freezing; this node's if None.
        has_mps: trial of MPS; this node's if None.
    """
    if not devices or not (can_freeze or tried_freezer)():
        return list(devices)
    is_served = any(not one.declared for one in devices) and (has_mps or tried_mps)()
    gpu = [MPS, COOPERATIVE] if is_served else [COOPERATIVE]
    slot = [SLOT, COOPERATIVE, TIME_SLICE]
    return [replace(one, sharing_modes=slot if one.declared else gpu) for one in devices]


def tried_freezer() -> str:
    """Freeze and thaw a child; returns how: ``v2``, ``v1`` or ``signal``, or empty if it failed.

    The child writes to a pipe: it must write nothing while frozen, and continue afterwards.
    """
    group = cgroups.create(_RUN_ID.format(os.getpid()), 0, 0, is_guest=True)
    reading, writing = os.pipe()
    pid, _ = cgroups.fork(group)
    if pid == 0:
        try:
            while True:
                os.write(writing, b".")
                time.sleep(0.002)
        finally:
            os._exit(0)
    os.close(writing)
    try:
        if group is not None and _stands_and_works(
            reading, lambda frozen: group.freeze(frozen=frozen)
        ):
            return "v2" if group.unified else "v1"
        return "signal" if _stands_and_works(reading, lambda frozen: _signal(pid, frozen)) else ""
    finally:
        if group is not None:
            group.freeze(frozen=False)
        system.kill_quietly(pid, signal.SIGKILL)
        system.reap(pid, _STOPPED_SECONDS)
        os.close(reading)
        if group is not None:
            group.remove()


def _signal(pid: int, frozen: bool) -> bool:
    system.kill_quietly(pid, signal.SIGSTOP if frozen else signal.SIGCONT)
    return True


def _stands_and_works(reading: int, freeze: Callable[[bool], bool]) -> bool:
    """Freeze the child, wait until the pipe stays empty, thaw it, and wait for new output."""
    os.set_blocking(reading, False)
    if not freeze(True) or not _until(lambda: not _has_counted(reading)):
        return False
    return freeze(False) and _until(lambda: _has_counted(reading))


def _has_counted(reading: int) -> bool:
    time.sleep(0.02)
    try:
        return bool(os.read(reading, 1 << 16))
    except BlockingIOError:
        return False


def _until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + _STOPPED_SECONDS
    while time.monotonic() < deadline:
        if condition():
            return True
    return False


def tried_mps() -> bool:
    """Return whether the control daemon of MPS responds to this user."""
    import subprocess  # noqa: PLC0415 - costs start-up time that only this path needs

    program = system.which(_MPS_CONTROL, _PROGRAMS)
    if not program:
        return False
    try:
        done = subprocess.run(
            [program],
            input=b"get_server_list\n",
            capture_output=True,
            timeout=_MPS_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
