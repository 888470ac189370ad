"""Starts a training script in one process for each device of this member, or by a layout.

    python3 -m tessera.train.launch train.py --steps 1000
    python3 -m tessera.train.launch --each COMMAND ...      # for processes: per-device

Each process gets RANK, LOCAL_RANK, WORLD_SIZE and LOCAL_WORLD_SIZE as from torchrun,
and the index of its device in TESSERA_JOB_PROCESS_DEVICE. If there are more processes than
devices, several share one (executors). If one fails, the launcher ends the others and exits with
its exit code. All devices of the member are visible to each process; it uses that of LOCAL_RANK.

With ``--each`` the command is any program. Each process is the leader of a process group, and each
line of its output begins with its rank, as in ``[rank3] loss=0.1``.
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
from tessera.train.rank_output import RankOutput

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


def rank_environments(processes: int) -> List[Dict[str, str]]:
    """Return the variables of the processes of this member, of which the first has RANK."""
    first = int(os.environ.get("RANK") or 0)
    return [
        {
            "RANK": str(first + local),
            "LOCAL_RANK": str(local),
            "LOCAL_WORLD_SIZE": str(processes),
            "TESSERA_JOB_PROCESS_DEVICE": str(local),
        }
        for local in range(processes)
    ]


class Launcher:
    """The processes of this member.

    Args:
        command: command of each process.
        environments: variables of each in addition to the launcher's own.
        output: receives the output of the processes, which then have process groups of their own;
            None if they write to that of the launcher.
    """

    def __init__(
        self,
        command: Sequence[str],
        environments: Sequence[Dict[str, str]],
        output: Optional[RankOutput] = None,
    ) -> None:
        shared = dict(os.environ)
        if os.environ.get("TESSERA_JOB_DETERMINISM") == "D2":
            shared.update(PORTABLE_CPU)
        self._output = output
        self._is_stopped = False
        self._ranks = [own["RANK"] for own in environments]
        self._running = [
            self._start(list(command), {**shared, **own}, own["RANK"]) for own in environments
        ]

    def _start(
        self, command: List[str], environment: Dict[str, str], rank: str
    ) -> "subprocess.Popen[bytes]":
        if self._output is None:
            return subprocess.Popen(command, env=environment)
        writer = self._output.open(rank)
        try:
            return subprocess.Popen(
                command, env=environment, stdout=writer, stderr=writer, start_new_session=True
            )
        finally:
            os.close(writer)

    def stop(self, number: int = signal.SIGTERM, _frame: Any = None) -> None:
        """Send a signal to all running processes, which then end in their own time."""
        self._is_stopped = True
        for process in self._running:
            if process.poll() is None:
                self._signal(process, number)

    def _signal(self, process: "subprocess.Popen[bytes]", number: int) -> None:
        try:
            if self._output is None:
                process.send_signal(number)
            else:
                os.killpg(process.pid, number)
        except ProcessLookupError:
            pass

    def wait(self) -> int:
        """Wait for all; returns 0, or the first failed exit code, after ending the others."""
        while True:
            codes = [process.poll() for process in self._running]
            failed = [code for code in codes if code]
            if self._have_ended():
                break
            if failed and not self._is_stopped:
                self._say_failed(codes)
                self._end_others()
                break
            self._pause()
        if self._output is not None:
            self._output.finish()
        return _exit_code(failed[0]) if failed else 0

    def _say_failed(self, codes: Sequence[Optional[int]]) -> None:
        if self._output is None:
            return
        rank, code = next((rank, code) for rank, code in zip(self._ranks, codes) if code)
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        self._output.write_line(f"rank {rank} failed with {how}; ending the other ranks")

    def _pause(self) -> None:
        if self._output is None:
            time.sleep(POLL_SECONDS)
        else:
            self._output.pump(POLL_SECONDS)

    def _end_others(self) -> None:
        self.stop()
        deadline = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < deadline:
            if self._have_ended():
                return
            self._pause()
        for process in self._running:
            self._signal(process, signal.SIGKILL)
            process.wait()

    def _have_ended(self) -> bool:
        """Return whether all processes have ended; after a stop, also those below a shell.

        A shell ends at once by SIGTERM, while its program may still save its work.
        """
        if any(process.poll() is None for process in self._running):
            return False
        if self._output is None or not self._is_stopped:
            return True
        return not any(map(_has_group, self._running))


def _has_group(process: "subprocess.Popen[bytes]") -> bool:
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return _is_running(process.pid)


def _is_running(group: int) -> bool:
    """Return whether a process of a group has not ended.

    An ended program whose shell has ended before remains in the group until init collects it.
    """
    try:
        names = os.listdir("/proc")
    except OSError:
        return True  # not Linux
    for name in filter(str.isdigit, names):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, _parent, found = file.read().rpartition(b") ")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if int(found) == group and state not in (b"Z", b"X"):
            return True
    return False


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
    layout = control.starting_layout()
    is_each = command[0] == "--each"
    if is_each and not (layout is not None and len(layout) == here.nodes):
        own = rank_environments(int(os.environ.get("LOCAL_WORLD_SIZE") or 1))
    else:
        counts = processes_of_members(layout, here.nodes, devices)
        own = environments(counts, here.node_rank, devices)
    if is_each:
        launcher = Launcher(command[1:], own, RankOutput(sys.stdout.fileno()))
    else:
        launcher = Launcher([sys.executable, *command], own)
    signal.signal(signal.SIGTERM, launcher.stop)
    signal.signal(signal.SIGINT, launcher.stop)
    return launcher.wait()


if __name__ == "__main__":
    sys.exit(main())
