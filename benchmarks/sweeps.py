"""Early stops of a sweep: device time used, and how good the best run found is.

``python -m benchmarks.sweeps --record`` trains 64 random settings of ``examples/digits_numpy.py``
(about two minutes) and writes ``sweep_runs.json``. ``python -m benchmarks.sweeps`` replays this
table with the rules of ``core.early_stopping``, on some devices, and prints JSON entries.
"""

import argparse
import heapq
import importlib.util
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np

from benchmarks.entries import entry
from scheduling.core.early_stopping import EarlyStop, RunCurve, StopRule, runs_to_stop
from scheduling.core.objectives import Goal
from scheduling.core.sweeps import SweepOptions, points

RUNS: Final = 64
STEPS: Final = 324
CHECK_EVERY: Final = 4
DEVICES: Final = (1, 8, 64)
SEED: Final = 7
TABLE: Final = Path(__file__).parent / "sweep_runs.json"
EXAMPLE: Final = Path(__file__).parent.parent / "examples" / "digits_numpy.py"
GRID: Final[Mapping[str, Sequence[str]]] = {
    "RATE": ["loguniform(1e-4, 1)"],
    "BATCH": ["32", "64", "128", "256"],
    "HIDDEN": ["16", "64", "128", "256"],
}
RULES: Final = {
    "asha": EarlyStop(rule=StopRule.ASHA, first_step=12, reduction=3),
    "median": EarlyStop(rule=StopRule.MEDIAN, first_step=12),
}


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A run of the table: accuracy on unseen pictures at some steps, and seconds of each step."""

    point: Mapping[str, str]
    steps: Sequence[int]
    accuracies: Sequence[float]
    step_seconds: float


@dataclass(frozen=True, slots=True)
class Replay:
    """A sweep with early stops: device time, steps, and accuracy of the run that it names."""

    seconds: float
    steps: int
    accuracy: float
    ended_early: int


def record() -> list[RecordedRun]:
    """Train all settings, one after the other, in this process."""
    example = _example()
    rng = np.random.default_rng(SEED)
    seen, unseen = example.make_data(4096, rng), example.make_data(2048, rng)
    found = []
    for number, point in enumerate(points(GRID, SweepOptions(samples=RUNS, seed=SEED)), 1):
        found.append(_train(example, point, seen, unseen))
        print(f"{number} of {RUNS}: {point}, {found[-1].accuracies[-1]:.3f}", file=sys.stderr)
    return found


def _example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("digits_numpy", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _train(example: ModuleType, point: Mapping[str, str], seen: Any, unseen: Any) -> RecordedRun:
    rng = np.random.default_rng(SEED)
    network = example.Network(int(point["HIDDEN"]), rng)
    steps, accuracies, seconds = [], [], 0.0
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for step in range(1, STEPS + 1):
            began = time.perf_counter()
            batch = example.draw_batch(*seen, int(point["BATCH"]), rng)
            network.step(*batch, float(point["RATE"]))
            seconds += time.perf_counter() - began
            if step % CHECK_EVERY == 0:
                steps.append(step)
                accuracies.append(round(network.accuracy(*unseen), 5))
    return RecordedRun(point, steps, accuracies, round(seconds / STEPS, 6))


def replay(runs: Sequence[RecordedRun], settings: EarlyStop, *, devices: int) -> Replay:
    """Run the sweep of a table with early stops, on devices that take the next run when idle.

    A check after each report ends runs as the live service does.
    """
    waiting = iter(range(len(runs)))
    done: dict[int, int] = {}
    queue: list[tuple[float, int]] = []
    ended: set[int] = set()
    seconds, steps = 0.0, 0

    def start(now: float) -> None:
        number = next(waiting, None)
        if number is not None:
            done[number] = 0
            heapq.heappush(queue, (now + CHECK_EVERY * runs[number].step_seconds, number))

    for _ in range(devices):
        start(0.0)
    while queue:
        now, number = heapq.heappop(queue)
        run = runs[number]
        # A run that was ended since its last report counts up to the next one.
        seconds += CHECK_EVERY * run.step_seconds
        steps += CHECK_EVERY
        if number in ended:
            start(now)
            continue
        done[number] += 1
        live = {other for _at, other in queue} | {number}
        curves = {
            other: RunCurve(
                runs[other].steps[:count],
                runs[other].accuracies[:count],
                other in live and other not in ended and count < len(runs[other].steps),
            )
            for other, count in done.items()
        }
        ended |= set(runs_to_stop(curves, goal=Goal.MAX, settings=settings))
        if number in ended or done[number] == len(run.steps):
            start(now)
        else:
            heapq.heappush(queue, (now + CHECK_EVERY * run.step_seconds, number))
    best = max(done, key=lambda number: max(runs[number].accuracies[: done[number]]))
    return Replay(seconds, steps, max(runs[best].accuracies[: done[best]]), len(ended))


def measure(runs: Sequence[RecordedRun]) -> Iterator[dict[str, Any]]:
    """Yield the entries of each rule and number of devices."""
    whole = sum(len(run.steps) * CHECK_EVERY * run.step_seconds for run in runs)
    best = max(max(run.accuracies) for run in runs)
    for name, settings in RULES.items():
        for devices in DEVICES:
            found = replay(runs, settings, devices=devices)
            context = (
                f"{len(runs)} recorded runs of {EXAMPLE.name}, {devices} devices, "
                f"{found.ended_early} ended early, "
                f"{100 * found.steps / (len(runs) * STEPS):.1f} % of the steps"
            )
            share, loss = 100 * found.seconds / whole, 100 * (1 - found.accuracy / best)
            yield entry(f"sweep_{name}_{devices}_device_time", share, "%", "lower", context)
            yield entry(f"sweep_{name}_{devices}_below_best", loss, "%", "lower", context)


def read_table(path: Path = TABLE) -> list[RecordedRun]:
    """Read a recorded table."""
    return [RecordedRun(**row) for row in json.loads(path.read_text())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="train the runs of the table")
    if parser.parse_args().record:
        rows = [
            {
                "point": run.point,
                "steps": run.steps,
                "accuracies": run.accuracies,
                "step_seconds": run.step_seconds,
            }
            for run in record()
        ]
        TABLE.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    for each in measure(read_table()):
        print(json.dumps(each), flush=True)


if __name__ == "__main__":
    main()
