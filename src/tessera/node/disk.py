"""Disk usage of a run, measured by a child at intervals, without disk quotas."""

from __future__ import annotations

import os
from typing import Callable, List, Optional

from tessera import protocol
from tessera.node import helped, kernel, sizes
from tessera.node.runs import Run
from tessera.protocol import RunSpec

FIRST_SECONDS = 2.0
"""Age of a run at its first measurement; short jobs thus avoid the fork."""
LEAST_SECONDS = 5.0
COST_FACTOR = 50.0
"""Ratio of pause to measurement: after 1 s the next one follows in 50 s, 2 % of a processor."""


def directories_of(run: Run, spec: RunSpec) -> List[str]:
    """Return directories in which a job may write on disk: run directory and checkpoints."""
    names = (protocol.WORK_DIR, protocol.JOB_DIR, protocol.HOME_DIR)
    return [*map(run.file, names), protocol.checkpoint_dir(run.store.root, spec)]


class Meter:
    """Compares the size of directories with a limit at intervals.

    Args:
        directories: measured together.
        limit: limit in bytes; 0 for none.
        measure: as ``sizes.size_of``; after a ``sizes.NotMeasuredError`` it is soon
            retried.
        begin_at: time of the first measurement, in seconds on the boot clock.
    """

    def __init__(
        self,
        directories: List[str],
        limit: int,
        measure: Callable[[List[str], int], int] = sizes.size_of,
        begin_at: float = 0.0,
    ) -> None:
        self._directories, self._limit, self._measure = directories, limit, measure
        self._result = -1
        self._child = 0
        self._begun = 0.0
        self._next_at = begin_at

    def excess(self, now: float) -> Optional[int]:
        """Return the size in bytes if it is above the limit, else None; does not block.

        Args:
            now: seconds on the boot clock.
        """
        if not self._limit:
            return None
        if self._result < 0:
            if now >= self._next_at:
                self._begin(now)
            return None
        try:
            text = os.read(self._result, 64)
        except BlockingIOError:
            return None
        os.close(self._result)
        self._result = -1
        self._reap()
        if not text.isdigit():
            self._next_at = now + LEAST_SECONDS
            return None
        self._next_at = now + max(LEAST_SECONDS, (now - self._begun) * COST_FACTOR)
        size = int(text)
        return size if size > self._limit else None

    def close(self) -> None:
        """Cancel the measurement in progress; the runner ends its child with all others."""
        if self._result >= 0:
            os.close(self._result)
            self._result = -1

    def _reap(self) -> None:
        try:
            os.waitpid(self._child, 0)
        except ChildProcessError:
            pass  # the payload may have reaped the child

    def _begin(self, now: float) -> None:
        self._begun = now
        self._result, writer = os.pipe()
        os.set_blocking(self._result, False)
        self._child = os.fork()
        if self._child:
            os.close(writer)
            return
        # Nothing may leave this block: the child would continue as a second runner.
        try:
            kernel.close_others({writer, *helped.descriptors()})
            os.nice(10)
            os.write(writer, self._measured())
        finally:
            os._exit(0)

    def _measured(self) -> bytes:
        """Return the size as digits; nothing if it cannot be measured now."""
        try:
            return b"%d" % self._measure(self._directories, self._limit)
        except sizes.NotMeasuredError:
            return b""
        except (RecursionError, OSError):  # nested too deeply: a hostile job
            return b"%d" % (self._limit + 1)


def sentence(size: int, limit: int) -> str:
    """Return the reason why a job is stopped, as text."""
    return f"{protocol.CAUSE_DISK}: the run uses {_mib(size)} of disk; the limit is {_mib(limit)}"


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB"
