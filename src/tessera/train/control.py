"""What the control plane tells a running job: to leave, and how to work until then.

Two files, each a JSON object that its one writer replaces as a whole (renames into place):

``$TESSERA_JOB_CONTROL``, by the node's runner, when the job is to leave
    ``notice``: why (``preempted``, ``resize``, ``timeout`` ...); never taken back. A file that
    cannot be read is a notice too. ``grace_seconds``, ``at``: how long it has, and since when.

``$TESSERA_JOB_BATCH``, for the control plane, whenever something changes
    ``batch``: samples of a step, of all processes together (at least 1).
    ``accumulation``: micro-batches of each process in a step (1 if missing).
    ``throttle``: the part of its time in which the job works, 0 to 1; 0 holds it between two
    steps until that changes or a notice comes. 1 if missing.
    ``layout``: how many logical workers each process runs, one list for each member of the gang
    in the order of NODE_RANK: ``[[3], [1]]`` is a process with three workers on the first member
    and one with one on the second; ``[[2, 2]]`` two processes (executors) on one member.

These four may stand in the first file as well and count there where the second lacks them. What is
out of range counts as missing. Settings are taken up between two steps, by all processes at once;
of several the first process reads them. A layout with another number of processes than are running
is for the next start.

What is known when an attempt starts may stand in its environment: ``TESSERA_JOB_LAYOUT`` (JSON as
above; the file's layout wins), ``TESSERA_JOB_LOGICAL_WORKERS`` (a number) and
``TESSERA_JOB_DETERMINISM`` (``D0``, ``D1`` or ``D2``); scripts that say nothing else follow them.
"""

from __future__ import annotations

import json
import math
import os
import time
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

from tessera.train.reports import tell

Layout = List[List[int]]
"""Logical workers of each process, in one list for each member of the gang."""
POLL_SECONDS = 0.1
_Stamp = Tuple[int, int, int]


@dataclass(frozen=True)
class Settings:
    """How the control plane wants the job to work; None where it says nothing.

    Attributes:
        batch, accumulation: of a step, see above.
        throttle: part of its time in which the job works.
        layout: of logical workers over processes.
    """

    batch: Optional[int] = None
    accumulation: int = 1
    throttle: float = 1.0
    layout: Optional[Layout] = None


class _File:
    """A file that others replace; it is read again only when it is another one."""

    def __init__(self) -> None:
        self._path = ""
        self.stamp: Optional[_Stamp] = None
        self.content: Any = None
        """What was last found; False when it was no JSON."""

    def look(self, path: str) -> bool:
        """Read the file if it has changed; whether it had."""
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
    """What was heard; a notice is never taken back."""

    def __init__(self) -> None:
        self.heard = ""
        self.listening = ""
        self.orders, self.wishes = _File(), _File()
        self._seen: Tuple[Optional[_Stamp], Optional[_Stamp]] = (None, None)
        self._settings = Settings()

    def listen(self, path: str) -> None:
        """Say that this job wants its grace period before any signal."""
        if self.listening != path:
            self.listening = path
            try:
                with open(os.path.join(os.path.dirname(path), "listens"), "a", encoding="utf-8"):
                    pass
            except OSError:
                pass  # then the job is told by SIGTERM, like any other

    def notice(self, path: str) -> str:
        """The reason of the notice; empty as long as there is none."""
        if not self.heard and self.orders.look(path) and self.orders.stamp is not None:
            self.heard = _reason(self.orders.content)
            if self.heard:
                tell("acknowledged", reason=self.heard)
        return self.heard

    def look(self) -> Settings:
        """The settings as the files have them now."""
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


_control = _Control()


def should_yield() -> bool:
    """Whether the job has been asked to end: save what is worth saving and leave.

    Call it once a step. A job that has called it gets its whole grace period before SIGTERM.
    Costs a few microseconds. Always False outside a job.
    """
    return bool(notice())


def notice() -> str:
    """Why the job has been asked to end (``preempted``, ``timeout`` ...); empty if it has not."""
    path = os.environ.get("TESSERA_JOB_CONTROL")
    if not path:
        return ""
    _control.listen(path)
    return _control.heard or _control.notice(path)


def settings() -> Settings:
    """How the control plane wants the job to work from now on; costs a few microseconds."""
    return _control.look()


def starting_layout() -> Optional[Layout]:
    """The layout that an attempt is to start with; None where nobody has said one."""
    layout = settings().layout
    if layout is not None:
        return layout
    try:
        return _layout(json.loads(os.environ.get("TESSERA_JOB_LAYOUT", "")))
    except (ValueError, RecursionError):
        return None


def pause(worked_seconds: float) -> float:
    """Wait after a step for as long as the throttle says; the seconds that were waited.

    Ends early when the job is asked to leave, or when the throttle is opened.

    Args:
        worked_seconds: how long the step took.
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
    """What a control file asks for: a file without a notice, but with settings, for nothing."""
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
