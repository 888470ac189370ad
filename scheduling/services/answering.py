"""Answers questions of what would have been in a process of its own, so that nothing waits for it.

An answer takes minutes of one processor. In a worker's own process it would hold up the shadows
and everything else on the worker's queue.
"""

import subprocess
import sys
from pathlib import Path
from typing import Final

_started: Final[list["subprocess.Popen[bytes]"]] = []


def start_answering(*, project: Path) -> None:
    """Start a process that answers what waits; it ends with this one, and at once if one answers.

    Args:
        project: the directory of ``manage.py``.
    """
    # Those that have ended are reaped here.
    _started[:] = [process for process in _started if process.poll() is None]
    _started.append(
        subprocess.Popen(
            [sys.executable, "manage.py", "answer_what_ifs", "--with-parent"],
            cwd=project,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
    )
