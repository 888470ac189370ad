"""A training that leaves its own evidence: a line in a ledger for each of its steps.

    python3 training_job.py PLACE

Where ``PLACE/hurt`` is when it starts, it first cuts off the end of its newest checkpoint, and
from then on no file may grow large, as on a disk that is full.
"""

import os
import resource
import sys
import time
from pathlib import Path

from tessera import train

EVERY = 20
STATE_BYTES, LARGEST_FILE = 2 << 20, 1 << 20


def main() -> None:
    """Train until somebody says that it is enough."""
    place = Path(sys.argv[1])
    if (place / "hurt").exists():
        (place / "hurt").unlink()
        cut_off_the_newest(Path(os.environ["TESSERA_JOB_CHECKPOINT_DIR"]))
        resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
    state = {"weights": bytes(STATE_BYTES), "done": 0}
    loop = train.Loop(1 << 30, save=lambda: state, load=state.update, every=EVERY)
    for step in loop:
        if state["done"] != step:
            raise RuntimeError(f"step {step} is to follow the state of {state['done']} steps")
        note(place / "ledger", step)
        time.sleep(0.04)
        state["done"] = step + 1
        loop.report(samples=1)


def cut_off_the_newest(checkpoints: Path) -> None:
    """Leave half of the newest checkpoint's state."""
    newest = max(checkpoints.glob("step-*/state"))
    os.truncate(newest, newest.stat().st_size // 2)


def note(ledger: Path, step: int) -> None:
    """Append one line by one write, so that two processes cannot mix theirs up."""
    line = f"{os.environ['TESSERA_JOB_RUN_ID']} {os.getpid()} {step}\n"
    descriptor = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, line.encode())
    os.close(descriptor)


if __name__ == "__main__":
    main()
