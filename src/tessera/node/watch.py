"""Detection of changes in the live runs of a node; each is reported once."""

from __future__ import annotations

import time
from typing import Callable, Dict, Set

from tessera import protocol
from tessera.node import fence
from tessera.node.runs import Run, Store
from tessera.protocol import Json, ProtocolError, RunStatus

GREW_SECONDS = 0.25
LOOK_SECONDS = 1.0
LIVE = (protocol.PREPARING, protocol.PREPARED, protocol.RUNNING)


class _Seen:
    """The last reported state of a run."""

    def __init__(self) -> None:
        self.state: Json = {}
        self.ends = (0, 0)
        self.grew_at = 0.0


class Watch:
    """Follows every run that has not ended and emits events about it."""

    def __init__(self, store: Store, emit: Callable[[Json], None]) -> None:
        self._store = store
        self._emit = emit
        self._seen: Dict[str, _Seen] = {}
        self._ended: Set[str] = set()
        self._looked_at = 0.0

    def __len__(self) -> int:
        return len(self._seen)

    def scan(self, now: float) -> None:
        """Read all runs of the node without events: clients request ``runs``."""
        emit, self._emit = self._emit, lambda _event: None
        try:
            for run in self._store.all_runs():
                self.look(run, now)
        finally:
            self._emit = emit

    def tick(self, now: float) -> None:
        """Check every live run at intervals; check a run at once if its file of reports has grown.

        Runner and log writer announce everything else. Only runs of earlier versions have such
        a file.
        """
        all_are_due = now - self._looked_at >= LOOK_SECONDS
        if all_are_due:
            self._looked_at = now
        for run_id, seen in list(self._seen.items()):
            run = self._store.run(run_id)
            if all_are_due or (not run.stores_reports() and seen.ends[1] != run.reports_end()):
                self.look(run, now)

    def told(self, status: RunStatus) -> None:
        """Follow a run after a reply with its status; its end is also reported by an event."""
        if status.phase not in LIVE:
            return
        self._ended.discard(status.run_id)
        seen = self._seen.setdefault(status.run_id, _Seen())
        seen.state = {**status.to_json(), "log_end": 0, "reports_end": 0}
        seen.ends = (0, 0)  # report the ends of the streams, which the reply did not

    def look(self, run: Run, now: float) -> None:
        """Check one run, and report changes; an end is reported once."""
        if run.run_id in self._ended and run.exists():
            return
        try:
            status = fence.settle(run)
        except (ProtocolError, OSError):
            self._seen.pop(run.run_id, None)
            self._ended.discard(run.run_id)
            return
        seen = self._seen.setdefault(run.run_id, _Seen())
        state = {**status.to_json(), "log_end": 0, "reports_end": 0}
        if state != seen.state:
            seen.state, seen.ends = state, (status.log_end, status.reports_end)
            told = {"event": protocol.EVENT_RUN, "run": status.to_json(), "now": time.time()}
            self._emit(told)
        else:
            self._report_growth(status, seen, now)
        if status.phase not in LIVE:
            del self._seen[run.run_id]
            self._ended.add(run.run_id)

    def _report_growth(self, status: RunStatus, seen: _Seen, now: float) -> None:
        ends = (status.log_end, status.reports_end)
        if ends == seen.ends or now - seen.grew_at < GREW_SECONDS * 0.8:
            return
        seen.ends, seen.grew_at = ends, now
        self._emit(
            {
                "event": protocol.EVENT_GREW,
                "run_id": status.run_id,
                "log_end": status.log_end,
                "reports_end": status.reports_end,
            }
        )
