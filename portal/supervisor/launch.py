"""Launcher of a child of the supervisor that does not outlive it.

    python -I -S launch.py SUPERVISOR_PID PROGRAM [ARGUMENT ...]

Standard library only, for speed: it asks the kernel (Linux) for a TERM at the death of the
supervisor, makes sure that this death has not happened yet, and becomes the program.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1


def main(arguments: Sequence[str]) -> int:
    """Tie this process to its parent and become the program."""
    parent, command = int(arguments[0]), list(arguments[1:])
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:
        return 1
    try:
        os.execvp(command[0], command)  # noqa: S606 - no shell is wanted
    except OSError as error:
        print(f"cannot start {command[0]}: {error.strerror}", file=sys.stderr)
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
