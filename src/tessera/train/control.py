"""Hears the notice that the job is to end, so that it can save its work first."""

from __future__ import annotations

import json
import os
from typing import Optional, Tuple


class _Control:
    """What was heard; a notice is never taken back."""

    def __init__(self) -> None:
        self.heard = ""
        self.listening = ""

    def listen(self, path: str) -> None:
        """Say that this job wants its grace period before any signal."""
        if self.listening != path:
            self.listening = path
            try:
                with open(os.path.join(os.path.dirname(path), "listens"), "a", encoding="utf-8"):
                    pass
            except OSError:
                pass  # then the job is told by SIGTERM, like any other

    def read(self, path: str) -> str:
        """The reason of the notice; empty as long as there is none."""
        try:
            with open(path, encoding="utf-8") as file:
                self.heard = str(json.load(file).get("notice") or "stop")
        except FileNotFoundError:
            return ""
        except (OSError, ValueError, AttributeError):
            self.heard = "stop"
        return self.heard


_control = _Control()


def should_yield() -> bool:
    """Whether the job has been asked to end: save what is worth saving and leave.

    Call it once a step. A job that has called it gets its whole grace period before SIGTERM.
    Costs about a microsecond. Always False outside a job.
    """
    return bool(notice())


def notice() -> str:
    """Why the job has been asked to end (``preempted``, ``timeout`` ...); empty if it has not."""
    path = os.environ.get("TESSERA_JOB_CONTROL")
    if not path:
        return ""
    _control.listen(path)
    return _control.heard or (_control.read(path) if os.path.exists(path) else "")


def choice() -> Optional[Tuple[int, int]]:
    """Batch and accumulation as the control plane has last chosen them; None if it has not."""
    path = os.environ.get("TESSERA_JOB_BATCH")
    if not path:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        return max(0, int(found["batch"])), max(1, int(found.get("accumulation", 1)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
