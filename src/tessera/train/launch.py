"""Starts a training script in one process for each device of this member, or by a layout.

    python3 -m tessera.train.launch train.py --steps 1000

Each process gets RANK, LOCAL_RANK, WORLD_SIZE and LOCAL_WORLD_SIZE as from torchrun,
and the index of its device in TESSERA_JOB_PROCESS_DEVICE. If there are more processes than
devices, several share one (executors). If one fails, the launcher ends the others and exits with
its exit code.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional, Sequence

from tessera.train import control
from tessera.train.determinism import PORTABLE_CPU
from tessera.train.environment import job

GRACE_SECONDS = 10.0
POLL_SECONDS = 0.05


def processes_of_members(
    layout: Optional[control.Layout], members: int, devices: int
) -> List[int]:
    """Return the number of processes of each member of the gang.

    Args:
        layout: layout from the control plane; a layout for another gang is ignored.
        members: number of members of the gang.
        devices: number of devices of each member.
    """
    if layout is not None and len(layout) == members:
        return [len(member) for member in layout]
    return [max(1, devices)] * members


def environments(counts: Sequence[int], member: int, devices: int) -> List[Dict[str, str]]:
    """Return the environment variables of the processes of one member, in order.

    Args:
        counts: processes of each member.
        member: index of the member.
        devices: number of devices of the member.
    """
    first, here = sum(counts[:member]), counts[member]
    return [
        {
            "RANK": str(first + local),
            "LOCAL_RANK": str(local),
            "WORLD_SIZE": str(sum(counts)),
            "LOCAL_WORLD_SIZE": str(here),
            "TESSERA_JOB_PROCESS_DEVICE": str(local * max(1, devices) // here),
            "MASTER_ADDR": job().master_addr,
            "MASTER_PORT": str(job().master_port),
        }
        for local in range(here)
    ]


class Launcher:
    """The processes of this member.

    Args:
        command: command of each process.
        environments: variables of each in addition to the launcher's own.
    """

    def __init__(self, command: Sequence[str], environments: Sequence[Dict[str, str]]) -> None:
        shared = dict(os.environ)
        if os.environ.get("TESSERA_JOB_DETERMINISM") == "D2":
            shared.update(PORTABLE_CPU)
        self._running = [
            subprocess.Popen(list(command), env={**shared, **own}) for own in environments
        ]

    def stop(self, number: int = signal.SIGTERM, _frame: Any = None) -> None:
        """Send a signal to all running processes."""
        for process in self._running:
            if process.poll() is None:
                process.send_signal(number)

    def wait(self) -> int:
        """Wait for all; returns 0, or the first failed exit code, after ending the others."""
        while True:
            codes = [process.poll() for process in self._running]
            failed = [code for code in codes if code]
            if failed:
                self._end_others()
                return _exit_code(failed[0])
            if all(code == 0 for code in codes):
                return 0
            time.sleep(POLL_SECONDS)

    def _end_others(self) -> None:
        self.stop()
        deadline = time.monotonic() + GRACE_SECONDS
        for process in self._running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _exit_code(code: int) -> int:
    """Return the exit code of a shell: 128 plus a signal's number."""
    return 128 - code if code < 0 else code


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Start the script of the command line; returns the exit code."""
    command = list(sys.argv[1:] if arguments is None else arguments)
    if not command:
        print(__doc__, file=sys.stderr)
        return 2
    here = job()
    devices = int(os.environ.get("TESSERA_JOB_DEVICE_COUNT") or 1)
    counts = processes_of_members(control.starting_layout(), here.nodes, devices)
    launcher = Launcher([sys.executable, *command], environments(counts, here.node_rank, devices))
    signal.signal(signal.SIGTERM, launcher.stop)
    signal.signal(signal.SIGINT, launcher.stop)
    return launcher.wait()


if __name__ == "__main__":
    sys.exit(main())
