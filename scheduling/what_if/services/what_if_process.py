"""Answers questions of what would have been in a process of its own, so that nothing waits for it.

An answer takes minutes of one processor. In a worker's own process it would hold up the shadows
and everything else on the worker's queue.
"""

import subprocess
import sys
from pathlib import Path
from threading import Lock
from typing import Final

MOST_AT_ONCE: Final = 2
"""One that answers, or is about to end, and one behind it that takes what came in meanwhile."""

_started: Final[list["subprocess.Popen[bytes]"]] = []
_STARTING: Final = Lock()


def start_answering(*, project: Path) -> None:
    """Start a process that answers what waits; it ends with this one, and at once if one answers.

    None is started beside two that live: pages ask again while they wait, and under load a process
    takes longer to begin than they take to ask.

    Args:
        project: the directory of ``manage.py``.
    """
    with _STARTING:
        # Those that have ended are reaped here.
        _started[:] = [process for process in _started if process.poll() is None]
        if len(_started) >= MOST_AT_ONCE:
            return
        _started.append(
            subprocess.Popen(
                [sys.executable, "manage.py", "answer_what_ifs", "--with-parent"],
                cwd=project,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        )
