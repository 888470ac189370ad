"""A training with gaps: each step computes, then waits for input, and guests work meanwhile.

python3 holder.py                      # until it is stopped
python3 holder.py --seconds 90 --busy 0.02 --gap 0.06
"""

import argparse
import time

from tessera.train import report, sharing


def compute(seconds):
    """Use a processor for some seconds."""
    end, found = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        found = (found * 1103515245 + 12345) % 2**31
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--busy", type=float, default=0.02, help="seconds of computing per step")
    parser.add_argument("--gap", type=float, default=0.06, help="seconds of waiting per step")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    options = parser.parse_args()
    began, step = time.monotonic(), 0
    while time.monotonic() - began < options.seconds:
        start = time.monotonic()
        with sharing.step():
            compute(options.busy)
        time.sleep(options.gap)  # input from a disk or another process
        report(step=step, samples=1, step_seconds=time.monotonic() - start)
        step += 1
    print(f"{step} steps", flush=True)


if __name__ == "__main__":
    main()
