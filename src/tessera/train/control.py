"""Control files of a running job: the notice to leave, and training settings.

Two files, each a JSON object that its one writer replaces as a whole (renames into place):

``$TESSERA_JOB_CONTROL``, by the node's runner, with a notice to leave
    ``notice``: reason (``preempted``, ``resize``, ``timeout`` ...); never withdrawn. A file that
    cannot be read is a notice too. ``grace_seconds``, ``at``: the grace period, and its start.

``$TESSERA_JOB_BATCH``, for the control plane, on every change
    ``batch``: samples of a step, of all processes together (at least 1).
    ``accumulation``: micro-batches of each process in a step (1 if missing).
    ``throttle``: the fraction of time in which the job works, 0 to 1; 0 pauses it between two
    steps until that changes or a notice comes. 1 if missing.
    ``layout``: logical workers of each process, one list for each member of the gang
    in the order of NODE_RANK: ``[[3], [1]]`` is a process with three workers on the first member
    and one with one on the second; ``[[2, 2]]`` two processes (executors) on one member.

The first file may have these four as well, as defaults for the second. A value
out of range counts as missing. The first process reads the settings; all processes apply them
between the same two steps. A layout for another number of processes applies at the next start.

Values known at the start of an attempt may be in its environment: ``TESSERA_JOB_LAYOUT`` (JSON as
above; the file's layout wins), ``TESSERA_JOB_LOGICAL_WORKERS`` (a number) and
``TESSERA_JOB_DETERMINISM`` (``D0``, ``D1`` or ``D2``); scripts without other arguments use them.
"""

from __future__ import annotations

import json
import math
import os
import time
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

from tessera.train.reports import report_event

Layout = List[List[int]]
"""Logical workers of each process, in one list for each member of the gang."""
POLL_SECONDS = 0.1
_Stamp = Tuple[int, int, int]


@dataclass(frozen=True)
class Settings:
    """Settings of the control plane for the job; None if unset.

    Attributes:
        batch, accumulation: batch and accumulation of a step, see above.
        throttle: fraction of time in which the job works.
        layout: layout of logical workers over processes.
    """

    batch: Optional[int] = None
    accumulation: int = 1
    throttle: float = 1.0
    layout: Optional[Layout] = None


class _File:
    """A file that others replace; it is read again only after a replacement."""

    def __init__(self) -> None:
        self._path = ""
        self.stamp: Optional[_Stamp] = None
        self.content: Any = None
        """The last content; False if it was not JSON."""

    def look(self, path: str) -> bool:
        """Read the file if it has changed; return whether it had changed."""
        try:
            found = os.stat(path)
            stamp: Optional[_Stamp] = (found.st_ino, found.st_mtime_ns, found.st_size)
        except OSError:
            stamp = None
        if stamp == self.stamp and path == self._path:
            return False
        self._path, self.stamp = path, stamp
        self.content = None
        if stamp is not None:
            try:
                with open(path, encoding="utf-8") as file:
                    self.content = json.load(file)
            except FileNotFoundError:
                self.stamp = None
            except (OSError, ValueError, RecursionError):
                self.content = False
        return True

    def fields(self) -> Dict[str, Any]:
        return self.content if isinstance(self.content, dict) else {}


class _Control:
    """State of the control files of a run; a notice is never withdrawn."""

    def __init__(self) -> None:
        self.heard = ""
        self.listening = ""
        self.orders, self.wishes, self._orders_seen = _File(), _File(), _File()
        self._seen: Tuple[Optional[_Stamp], Optional[_Stamp]] = (None, None)
        self._settings = Settings()

    def listen(self, path: str) -> None:
        """Request the grace period before any signal for this job."""
        if self.listening != path:
            self.listening = path
            try:
                with open(os.path.join(os.path.dirname(path), "listens"), "a", encoding="utf-8"):
                    pass
            except OSError:
                pass  # the job then gets SIGTERM instead of a notice

    def notice(self, path: str) -> str:
        """Return the reason of the notice; empty without one."""
        if not self.heard and self.orders.look(path) and self.orders.stamp is not None:
            self.heard = _reason(self.orders.content)
            if self.heard:
                report_event("acknowledged", reason=self.heard)
        return self.heard

    def has_notice(self, path: str) -> bool:
        """Return whether there is a notice, which the program has not read by that."""
        if not self.heard:
            self._orders_seen.look(path)
        content = self._orders_seen.content
        return bool(self.heard) or (content is not None and bool(_reason(content)))

    def look(self) -> Settings:
        """Read the current settings from the files."""
        orders = os.environ.get("TESSERA_JOB_CONTROL", "")
        wishes = os.environ.get("TESSERA_JOB_BATCH", "")
        if orders:
            self.notice(orders)
        if wishes:
            self.wishes.look(wishes)
        seen = (self.orders.stamp, self.wishes.stamp)
        if seen != self._seen:
            self._seen = seen
            self._settings = _settings({**self.orders.fields(), **self.wishes.fields()})
        return self._settings


_controls: Dict[str, _Control] = {}


def _control(path: str) -> _Control:
    """Return the state for the control file of this run; a process has one."""
    found = _controls.get(path)
    if found is None:
        found = _controls[path] = _Control()
    return found


def should_yield() -> bool:
    """Return whether the job has a notice to leave: it should save its state and exit.

    Call it once a step. A job that has called it gets its whole grace period before SIGTERM.
    Costs a few microseconds. Always False outside a job.
    """
    return bool(notice())


def notice() -> str:
    """Return the reason of the notice to leave (``preempted``, ``timeout`` ...), or empty."""
    path = os.environ.get("TESSERA_JOB_CONTROL")
    if not path:
        return ""
    control = _control(path)
    control.listen(path)
    return control.heard or control.notice(path)


def has_notice() -> bool:
    """Return whether the job has a notice to leave, for the library itself.

    The program may not check for notices: it still gets SIGTERM at once, and the notice does not
    count as acknowledged.
    """
    path = os.environ.get("TESSERA_JOB_CONTROL", "")
    return bool(path) and _control(path).has_notice(path)


def settings() -> Settings:
    """Return the control plane's current settings for the job; costs a few microseconds."""
    return _control(os.environ.get("TESSERA_JOB_CONTROL", "")).look()


def starting_layout() -> Optional[Layout]:
    """Return the layout for the start of an attempt, or None."""
    layout = settings().layout
    if layout is not None:
        return layout
    try:
        return _layout(json.loads(os.environ.get("TESSERA_JOB_LAYOUT", "")))
    except (ValueError, RecursionError):
        return None


def pause(worked_seconds: float) -> float:
    """Wait after a step as required by the throttle; returns the seconds waited.

    Ends early on a notice to leave, or when the throttle is lifted.

    Args:
        worked_seconds: duration of the step.
    """
    began = time.monotonic()
    while True:
        part = settings().throttle
        if part >= 1.0:
            break
        waited = time.monotonic() - began
        left = worked_seconds * (1.0 / part - 1.0) - waited if part > 0.0 else math.inf
        if left <= 0.0 or should_yield():
            break
        time.sleep(min(left, POLL_SECONDS))
    return time.monotonic() - began


# -- reading --------------------------------------------------------------------------------------


def _reason(content: Any) -> str:
    """Parse the notice in a control file; empty for a file with only settings."""
    if not isinstance(content, dict):
        return "stop"
    if "notice" not in content and content:
        return ""
    return str(content.get("notice") or "stop")


def _settings(said: Dict[str, Any]) -> Settings:
    accumulation = _whole(said.get("accumulation"))
    return Settings(
        batch=_whole(said.get("batch")),
        accumulation=1 if accumulation is None else accumulation,
        throttle=_part(said.get("throttle")),
        layout=_layout(said.get("layout")),
    )


def _whole(value: Any) -> Optional[int]:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if 1 <= value <= 1 << 40 else None


def _part(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        return 1.0
    return float(value)


def _layout(value: Any) -> Optional[Layout]:
    if not isinstance(value, list) or not value:
        return None
    for member in value:
        if not isinstance(member, list) or not member:
            return None
        if not all(type(count) is int and 0 <= count <= 1 << 20 for count in member):
            return None
    return [list(member) for member in value]
