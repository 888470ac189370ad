"""Launcher that ties a child process to the life of the supervisor.

python -I -S launch.py SUPERVISOR_PID PROGRAM [ARGUMENT ...]

For speed, it uses the standard library only. On Linux, it requests a TERM signal at the death of
the supervisor, checks that the supervisor still runs, and replaces itself by the program.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1


def main(arguments: Sequence[str]) -> int:
    """Tie this process to its parent, and replace it by the program."""
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
