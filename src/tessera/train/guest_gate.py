"""The gate of a guest, at which it waits until its bound and the holder's phase let it work."""

from __future__ import annotations

import time
from collections import deque
from contextlib import contextmanager
from typing import Any, Callable, Deque, Dict, Iterator, Optional

from tessera.node.sharing import bounds, files, gaps
from tessera.node.system import boot_clock
from tessera.train import control
from tessera.train.reports import report_sharing

POLL_SECONDS = 0.02
"""A guest reads its bound this often."""
CLOSED_SECONDS = 0.005
"""A guest at a closed gate sleeps this long between two looks."""
REPORT_SECONDS = 0.5
LEAVING_COMPUTE = 0.2
"""Part of the time in which a guest works that has its notice to leave."""
MOST_BUSY_SECONDS = 0.2
LEAST_MODULE_SECONDS = 1e-6
_LONGEST_OF = 8


class Gate:
    """The gate of a guest: its bound, and measurements of the holder's gaps.

    Args:
        path: file of the bound.
        clock: the node's boot clock, in seconds.
        sleep: waits for some seconds.

    Attributes:
        waited: seconds that the guest has waited here.
        listens: ``step``, or ``module`` once a model is attached.
        memory: returns bytes of device memory for reports.
        module_seconds: length of the longest module of a step, the lower quartile of 8 steps. A
            module that meets the holder on the device takes longer than alone. So those that ran
            within one gap count, if there are any: otherwise no gap might ever be long enough.
    """

    def __init__(
        self,
        path: str,
        clock: Callable[[], float] = boot_clock,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.waited = 0.0
        self.listens = "step"
        self.module_seconds = LEAST_MODULE_SECONDS
        self.memory: Callable[[], Dict[str, int]] = dict
        self._path, self._clock, self._sleep = path, clock, sleep
        self._bound: Optional[bounds.Bound] = None
        self._is_lifted = self._is_leaving = False
        self._host_path: Optional[str] = None
        self._page: Optional[files.PhasePage] = None
        self._gap_seen = 0.0
        self._follower = gaps.Follower()
        self._longest: Deque[float] = deque(maxlen=_LONGEST_OF)
        self._alone: Deque[float] = deque(maxlen=_LONGEST_OF)
        self._module = self._module_alone = self._worked = 0.0
        self._phase_before: Optional[gaps.StepPhase] = None
        self._left = clock()
        self._looked_at = self._reported_at = -1.0
        self._stands = 0
        self._inside = 0

    @property
    def bound(self) -> Optional[bounds.Bound]:
        """The newest bound; None before the first one, and after a promotion to holder."""
        return None if self._is_lifted else self._bound

    def end_step(self) -> None:
        """Record the end of a step, and the time of its longest module."""
        self._note_work(self._clock())
        if self._module > 0:
            self._longest.append(self._module)
        if self._module_alone > 0:
            self._alone.append(self._module_alone)
        known = sorted(self._alone or self._longest)
        if known:
            self.module_seconds = max(known[len(known) // 4], LEAST_MODULE_SECONDS)
        self._module = self._module_alone = 0.0

    def wait(self) -> float:
        """Wait until the guest may start its next module; returns the seconds waited."""
        if self._inside:
            return 0.0
        began = now = self._clock()
        if self.listens == "module":
            self._note_work(now)
        while not self._may_go(now):
            now = self._clock()
        if self._stands:
            self._stands = 0
            self._report(now)
        elif now - self._reported_at >= REPORT_SECONDS:
            self._report(now)
        self._left = now
        self.waited += now - began
        return now - began

    @contextmanager
    def held_open(self) -> Iterator[None]:
        """Pass all gates in the context: its work must not be interrupted."""
        self.wait()
        self._inside += 1
        began = self._clock()
        try:
            yield
        finally:
            self._inside -= 1
            if self._clock() - began > MOST_BUSY_SECONDS:
                self._report(self._clock())  # the report contains the length of this module

    def _note_work(self, now: float) -> None:
        seconds = now - self._left
        self._left = now
        self._worked += seconds
        if not self._longest or seconds < 1.0 + 10 * self.module_seconds:  # frozen otherwise
            self._module = max(self._module, seconds)
            if not self._longest:
                self.module_seconds = max(self._module, LEAST_MODULE_SECONDS)
            if self._page is not None and self._phase_before == self._page.read()[0]:
                self._module_alone = max(self._module_alone, seconds)

    def _may_go(self, now: float) -> bool:
        """Check the bound once; sleep if the guest has to wait."""
        self._look(now)
        if self._is_lifted:
            return True
        compute, phase = bounds.compute_at(self._bound, now), self._phase()
        if self._is_leaving:
            compute, phase = LEAVING_COMPUTE, None
        self._follower, answer = gaps.ask(self._follower, now, compute, self.module_seconds, phase)
        if answer.go:
            is_idle = phase is not None and not phase.busy
            self._phase_before = phase if is_idle else None
            return True
        if compute <= 0:
            self._stand(now)
            self._sleep(CLOSED_SECONDS)
        else:
            is_idle = phase is not None and not phase.busy
            shortest = gaps.SLICE_SECONDS if is_idle or phase is None else 2 * gaps.SLICE_SECONDS
            self._sleep(min(max(answer.wait_seconds, shortest), shortest * 4))
        return False

    def _look(self, now: float) -> None:
        if 0 <= now - self._looked_at < POLL_SECONDS:
            return
        self._looked_at = now
        self._is_leaving = control.has_notice()
        document = files.read_document(self._path)
        found = bounds.parsed(document)
        if document is None or found is None:
            return
        was_closed = bounds.compute_at(self._bound, now) <= 0
        self._bound = bounds.newest(self._bound, found)
        if self._bound is found:
            self._is_lifted = document.get("lifted") is True
            self._open_page(document.get("host"))
        if was_closed and bounds.compute_at(self._bound, now) > 0:
            self._follower = gaps.after_closed(self._follower, now)

    def _open_page(self, path: Any) -> None:
        if path == self._host_path and (self._page is not None or path is None):
            return
        self._host_path = path if isinstance(path, str) else None
        if self._page is not None:
            self._page.close()
            self._page = None
        if self._host_path is not None:
            try:
                self._page = files.PhasePage(self._host_path)
            except (OSError, ValueError):
                pass  # retried with the next bound

    def _phase(self) -> Optional[gaps.StepPhase]:
        if self._page is None:
            return None
        phase, gap = self._page.read()
        if phase.busy and phase.since != self._gap_seen and gap > 0:
            self._gap_seen = phase.since
            self._follower = gaps.after_gap(self._follower, gap)
        return phase

    def _stand(self, now: float) -> None:
        number = self._bound.number if self._bound is not None else 0
        if self._stands != number:
            self._stands = number
            self._report(now)

    def _report(self, now: float) -> None:
        self._reported_at = now
        report_sharing(
            listens=self.listens,
            stands=self._stands,
            module_seconds=round(self.module_seconds, 6),
            worked=round(self._worked, 3),
            waited=round(self.waited, 3),
            **self.memory(),
        )
