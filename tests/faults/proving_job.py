"""A job that leaves its own evidence: when it starts, that it is alive, and when it ends.

    python3 -I -S proving_job.py LEDGER SECONDS CODE BEGUN

``BEGUN`` is when it started, in seconds by the clock that counts from the machine's boot. Each
line goes to the ledger by one write to a file opened for appending, so that no two jobs can mix
them up, and whoever else writes there would be seen. Four times a second the job prints a
numbered line and then notes its number, so the log must hold every number in the ledger. TERM is
noticed before the last line, and never between the last line and the end.
"""

import os
import signal
import sys
import time
from pathlib import Path

TERMINATED = 143
ALIVE_SECONDS = 0.25


def main() -> None:
    """Say that it has started, wait, say how it ends, and end so."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    ledger, seconds, code = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    note(ledger, "start", node(), os.environ["TESSERA_JOB_DEVICES"], at=float(sys.argv[4]))
    number, until = 0, time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        os.write(1, b"line %d\n" % number)
        note(ledger, "alive", number, "-")
        number += 1
        if signal.sigtimedwait([signal.SIGTERM], min(left, ALIVE_SECONDS)) is not None:
            code = TERMINATED
            break
    note(ledger, "end", code, "-")
    os._exit(code)


def node() -> str:
    """The home of the node's user; in a sandbox, the source of the run directory's mount."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if " /tessera/work " in line:
            return line.split()[3].partition("/.tessera/")[0]
    return os.environ["HOME"]


def note(ledger: str, *words: object, at: float = 0.0) -> None:
    """Append one line, with the present time if none is given."""
    fields = (
        words[0],
        os.environ["TESSERA_JOB_RUN_ID"],
        os.getpid(),
        at or time.clock_gettime(time.CLOCK_BOOTTIME),
        *words[1:],
    )
    line = " ".join(str(field) for field in fields) + "\n"
    descriptor = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, line.encode())
    os.close(descriptor)


if __name__ == "__main__":
    main()
