"""A training that works in the gaps of another job on the same device.

After the notice to leave, it saves its step and exits; the next attempt continues from there.

    python3 guest.py --steps 3000 --busy 0.005
"""

import argparse
import time

from tessera import train
from tessera.train import sharing


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--busy", type=float, default=0.005, help="seconds of computing per step")
    parser.add_argument("--steps", type=int, default=1_000_000)
    options = parser.parse_args()
    first = (train.resume() or {"step": 0})["step"]
    for step in range(first, options.steps):
        start = time.monotonic()
        with sharing.step():  # waits at the gate
            end = time.monotonic() + options.busy
            while time.monotonic() < end:
                pass
        train.report(step=step, samples=1, step_seconds=time.monotonic() - start)
        if step % 100 == 0:
            print(f"step {step}", flush=True)
        if train.should_yield():
            train.checkpoint({"step": step + 1}, step=step + 1)
            print(f"left at step {step + 1} ({train.notice()})", flush=True)
            return


if __name__ == "__main__":
    main()
