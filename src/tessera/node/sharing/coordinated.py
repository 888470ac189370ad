"""Devices and guests of a coordinator: their orders, locks, bounds and reports."""

from __future__ import annotations

import os
from collections import deque
from typing import Deque, Optional, Tuple

from tessera import protocol
from tessera.device_sharing import GuestOrder
from tessera.isolation import NONE
from tessera.node import system
from tessera.node.runs import Run
from tessera.node.sharing import bounds, files
from tessera.node.sharing.files import GuestReport, Orders
from tessera.node.sharing.tails import ReportTail
from tessera.protocol import ProtocolError

_NO_GAIN_SECONDS, _LEAST_OPEN_SECONDS = 600.0, 30.0
_WORKED_SECONDS = 60.0


class CoordinatedDevice:
    """A device of the holder: its directory, its orders, and the lock of the coordinator."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.orders: Optional[Orders] = None
        self._stamp = (0, 0)
        self._lock: Optional[int] = None

    def take_orders(self, run_id: str) -> bool:
        """Read the orders if they have changed; returns whether they have.

        The lock is taken with the first orders for this run, and held until the run ends.
        """
        try:
            found = os.lstat(os.path.join(self.directory, files.ORDERS_FILE))
        except OSError:
            return False
        stamp = (found.st_ino, found.st_mtime_ns)
        if stamp == self._stamp:
            return False
        orders = files.read_orders(self.directory)
        if orders is None or orders.holder_run_id != run_id:
            self._stamp = stamp
            return False
        if self._lock is None:
            pid = os.getpid()
            start = system.start_ticks(pid)
            self._lock = files.lock_device(self.directory, run_id, pid, start)
        if self._lock is None:
            return False  # the previous coordinator has the lock; the next check retries
        self._stamp = stamp
        is_newer = self.orders is None or orders.number > self.orders.number
        self.orders = orders if is_newer else self.orders
        return is_newer

    def release(self) -> None:
        """Remove the state, and release the lock."""
        if self._lock is not None:
            system.remove_quietly(os.path.join(self.directory, files.DEVICE_STATE_FILE))
            os.close(self._lock)
            self._lock = None


class CoordinatedGuest:
    """A guest: its order, its bound, and its reports.

    Attributes:
        report: the latest report of its library.
        bound: the bound written last.
        memory: upper bound of its device memory in bytes.
        has_to_leave: why it has to leave; empty while it may stay.
        closed_number: number of the first bound since its gate has closed.
    """

    def __init__(self, run: Run, order: GuestOrder, device: CoordinatedDevice, now: float) -> None:
        self.run, self.order, self.device = run, order, device
        self.report = GuestReport()
        written = files.read_document(run.file(files.BOUND_FILE))
        self.bound = bounds.parsed(written)  # its number continues that of an earlier coordinator
        self.memory = order.most
        self.since = self.rose_at = now
        self.has_to_leave = ""
        self.written_why = ""
        self.closed_number = 1
        self._was_there = False
        self._tail = ReportTail(run)
        self._open: Deque[Tuple[float, float]] = deque()
        self._worked: Deque[Tuple[float, float]] = deque()

    def read(self, now: float) -> None:
        """Read the new reports of the guest's library."""
        for line in self._tail.lines():
            self.report = files.report_of(line) or self.report
        self._worked.append((now, self.report.worked))
        while now - self._worked[0][0] > _WORKED_SECONDS:
            self._worked.popleft()

    def has_ended(self) -> bool:
        """Return whether the run has ended; its orders may arrive before it is prepared."""
        try:
            is_over = self.run.recorded().phase == protocol.EXITED
        except ProtocolError:
            return self._was_there
        self._was_there = True
        return is_over

    def host_page(self, holder: Run) -> Optional[str]:
        """Return the path of the holder's phase page as the guest sees it; None if it may not."""
        try:
            spec = self.run.spec()
            level = self.run.recorded().isolation
        except ProtocolError:
            return None
        if not any(place.sees_phase for place in spec.beside):
            return None
        return holder.file(protocol.PHASE_FILE) if level == NONE else files.PHASE_IN_SANDBOX

    def note_open(self, now: float, seconds: float) -> None:
        """Record open time, for the rule that a guest without gain leaves."""
        if seconds > 0:
            self._open.append((now, seconds))
        while self._open and now - self._open[0][0] > _NO_GAIN_SECONDS:
            self._open.popleft()
        is_old = now - self.since > _NO_GAIN_SECONDS
        if is_old and sum(part for _, part in self._open) < _LEAST_OPEN_SECONDS:
            self.has_to_leave = "no-gain"

    def duty(self) -> Optional[float]:
        """Return the share of the last minute in which the guest worked; None without reports."""
        (first, before), (last, after) = self._worked[0], self._worked[-1]
        if not self.report.listens or last <= first:
            return None
        return min(max((after - before) / (last - first), 0.0), 1.0)
