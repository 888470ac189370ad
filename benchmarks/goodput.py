"""Errors of predicted goodput: step times of unseen pairs, and gains of larger batches.

The examples' models train with one to as many processes as there are processors, one thread each.
The model of live jobs is fitted to half of the pairs of processes and batch; the other half is
predicted and measured. Pairs take turns, and processor time is compared, so that other work of the
machine disturbs little; wall time is reported as well. Then the predicted statistical efficiency
of a larger batch is compared with the samples needed to reach the same loss. Needs PyTorch.
"""

import importlib.util
import json
import math
import multiprocessing
import os
import random
import runpy
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from tessera.efficiency import efficiency

os.environ.setdefault("OMP_NUM_THREADS", "1")

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SEEN_BATCHES, UNSEEN_BATCHES = (8, 24, 48, 96), (16, 32, 64, 128)
TURNS, STEPS, WARM = 12, 4, 2
PATIENCE_SECONDS, LONGEST_SECONDS = 120.0, 3600.0
INITIAL, LARGER, PARTS, PROGRESS = 32, 128, 4, 240
RATES = {"pictures": 0.02, "gpt": 0.1}
SMOOTHING = 0.95


def main() -> None:
    """Measure and print entries, one a line; without PyTorch only a message."""
    if importlib.util.find_spec("torch") is None:
        print("goodput: PyTorch is not installed, nothing is measured", file=sys.stderr)
        return
    for name in ("pictures", "gpt"):
        steps = measured_steps(name)
        errors = errors_of_step_times(steps)
        by_the_clock = errors_of_step_times([one._replace(seconds=one.clock) for one in steps])
        context = (
            f"{len(errors)} unseen pairs of processes and batch, processor time, worst"
            f" {max(errors):.0f} %; by the clock {statistics.median(by_the_clock):.0f} %"
        )
        show(f"step_time_error_{name}", statistics.median(errors), "%", context)
        foretold, measured = efficiencies(name)
        show(
            f"efficiency_error_{name}",
            100 * abs(foretold / measured - 1),
            "%",
            f"batch {LARGER} after {INITIAL}: foretold {foretold:.2f}, measured {measured:.2f}",
        )


def show(name: str, value: float, unit: str, context: str) -> None:
    entry = {"name": name, "value": round(value, 3), "unit": unit, "better": "lower"}
    print(json.dumps({**entry, "context": context}), flush=True)


# -- step times -----------------------------------------------------------------------------------


class Measured(NamedTuple):
    """Steps of one size and batch.

    Attributes:
        local: samples of each process.
        seconds: of a step, in processor time.
        clock: of a step, by the clock.
    """

    processes: int
    local: int
    seconds: float
    clock: float


class Step(NamedTuple):
    """Seconds of one step, of the slowest process: processor time, and by the clock."""

    seconds: float
    clock: float


def errors_of_step_times(measured: Sequence[Measured]) -> list[float]:
    """Errors, in percent, of the step times of pairs unseen by the fit of live jobs."""
    from scheduling.core.performance.batches import fit_steps
    from scheduling.core.performance.goodput import exchange_time, pass_times, step_times

    seen = tuple(timed(one) for one in measured if one.local in SEEN_BATCHES)
    model = fit_steps(seen)
    assert model is not None
    errors = []
    for one in measured:
        if one.local in UNSEEN_BATCHES:
            exchange = exchange_time(model, 1, one.processes)
            foretold = float(step_times(model, pass_times(model, one.local), exchange, 0))
            errors.append(100 * abs(foretold / one.seconds - 1))
    return errors


def timed(one: Measured) -> Any:
    """Return the reports of a job with these steps."""
    from scheduling.core.values import Timed

    return Timed(
        type="processor", nodes=1, devices=one.processes, batch=one.local * one.processes,
        accumulation=1, steps=1, seconds=one.seconds,
    )  # fmt: skip


def measured_steps(name: str) -> list[Measured]:
    """Steps of all pairs of processes and batch.

    Groups of all sizes exist at once, and pairs take turns in a random order, so that
    disturbances of the machine affect all of them alike.
    """
    most = len(os.sched_getaffinity(0))
    pairs = list(product(range(1, most + 1), (*SEEN_BATCHES, *UNSEEN_BATCHES)))
    found: dict[tuple[int, int], list[Step]] = {pair: [] for pair in pairs}
    chance = random.Random(name)
    with ExitStack() as stack:
        groups = {size: stack.enter_context(group(name, size)) for size in range(1, most + 1)}
        for _ in range(TURNS):
            chance.shuffle(pairs)
            for size, local in pairs:
                found[size, local] += steps_of(groups[size], local)
    return [
        Measured(
            *pair,
            statistics.median(one.seconds for one in found[pair]),
            statistics.quantiles([one.clock for one in found[pair]], n=4)[0],
        )
        for pair in sorted(pairs)
    ]


def steps_of(ranks: Sequence[Connection], local: int) -> list[Step]:
    """Run some steps of a group."""
    for rank in ranks:
        rank.send(local)
    if not all(rank.poll(PATIENCE_SECONDS) for rank in ranks):
        raise TimeoutError(f"a process of {len(ranks)} makes no steps of {local} samples")
    told = [rank.recv() for rank in ranks]
    return [
        Step(max(seconds for seconds, _ in step), max(clock for _, clock in step))
        for step in zip(*told, strict=True)
    ]


@contextmanager
def group(name: str, size: int) -> Iterator[list[Connection]]:
    """Processes that train together, each of which runs steps of the batches it receives."""
    from tests.support.elastic_training import together

    ends = [multiprocessing.Pipe() for _ in range(size)]
    theirs = [end for _, end in ends]
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(1) as pool:
        codes = pool.submit(
            together, make_steps, size, name, theirs, Path(scratch), patience=LONGEST_SECONDS
        )
        try:
            yield [end for end, _ in ends]
        finally:
            for end, _ in ends:
                end.send(0)
        if codes.result() != [0] * size:
            raise RuntimeError(f"{name} with {size} processes ended with {codes.result()}")


def make_steps(
    name: str, ends: Sequence[Connection], directory: Path, rank: int, port: int
) -> None:
    """Run steps of the batches from the pipe, and send their durations."""
    from tests.support.elastic_training import be_rank

    size = len(ends)
    be_rank(rank, size, port, directory)
    trainings: dict[int, Any] = {}
    while local := ends[rank].recv():
        if local not in trainings:
            adaptive, forward = training(name, initial=local * size, largest_micro=local)
            trainings[local] = (adaptive, forward, adaptive.steps(math.inf))
        adaptive, forward, turns = trainings[local]
        told = []
        for _ in range(WARM + STEPS):
            next(turns)
            began, own = time.perf_counter(), time.process_time()
            adaptive.step(forward)
            # With the threads that exchange gradients, without waits for others.
            told.append((time.process_time() - own, time.perf_counter() - began))
        ends[rank].send(told[WARM:])


def training(name: str, *, initial: int, largest_micro: int) -> tuple[Any, Any]:
    """An example's model under an adaptive batch, and its loss function."""
    import torch
    from torch import nn

    from tessera.train import AdaptiveBatch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    example = runpy.run_path(str(EXAMPLES / f"{name}_torch.py"))
    if name == "pictures":
        model = example["make_network"]()
        data: Any = torch.utils.data.TensorDataset(*example["make_pictures"](4096, seed=1))

        def forward(batch: Any) -> Any:
            return nn.functional.cross_entropy(model(batch[0]), batch[1])
    else:
        model, data = example["Gpt"](), example["make_sums"](8192, seed=1)

        def forward(batch: Any) -> Any:
            return example["loss_of"](model, batch)

    optimizer = torch.optim.SGD(model.parameters(), lr=RATES[name])
    adaptive = AdaptiveBatch(
        model, optimizer, data, initial_batch=initial, largest_micro=largest_micro, seed=2
    )
    return adaptive, forward


def reports_of(adaptive: Any, forward: Any, *, progress: float) -> list[dict[str, Any]]:
    """Reports of a training, step by step."""
    from tessera.train import adaptive as module

    told: list[dict[str, Any]] = []
    module.report = lambda **report: told.append(report)  # type: ignore[assignment]
    for _ in adaptive.steps(progress):
        adaptive.step(forward)
    return told


# -- efficiency -----------------------------------------------------------------------------------


def efficiencies(name: str) -> tuple[float, float]:
    """Progress per sample of the larger batch against the initial one: predicted, and measured.

    Measured by the samples that each needs until its loss is as low as that of the initial batch
    at the end. The noise is that of the training with the initial batch.
    """
    from tests.support.elastic_training import together

    with tempfile.TemporaryDirectory() as scratch:
        small, large = Path(scratch, "small"), Path(scratch, "large")
        for directory, batch in ((small, INITIAL), (large, LARGER)):
            directory.mkdir()
            wish = {"batch": batch, "accumulation": PARTS}
            (directory / "batch.json").write_text(json.dumps(wish))
            if together(make_progress, 1, name, directory, patience=LONGEST_SECONDS) != [0]:
                raise RuntimeError(f"{name} with batch {batch} failed")
        first, second = (json.loads((one / "told").read_text()) for one in (small, large))
    wanted, samples = first["losses"][-1], first["samples"][-1]
    needed = next(
        (
            at
            for at, loss in zip(second["samples"], second["losses"], strict=True)
            if loss <= wanted
        ),
        second["samples"][-1],
    )
    return statistics.fmean(first["efficiencies"]), samples / needed


def make_progress(name: str, directory: Path, rank: int, port: int) -> None:
    """Train for that progress; writes samples seen, smoothed losses and efficiencies."""
    from tests.support.elastic_training import be_rank

    be_rank(rank, 1, port, directory)
    adaptive, forward = training(name, initial=INITIAL, largest_micro=INITIAL)
    told = reports_of(adaptive, forward, progress=PROGRESS)
    samples, losses, worth = [], [], []
    seen, smooth = 0, math.nan
    for one in told:
        seen += one["batch"]
        kept = SMOOTHING ** (one["batch"] / INITIAL)
        smooth = one["loss"] if math.isnan(smooth) else kept * smooth + (1 - kept) * one["loss"]
        square, variance = one["noise"]
        if square + variance > 0:
            worth.append(efficiency(square, variance, INITIAL / LARGER))
        samples.append(seen)
        losses.append(smooth)
    written = {"samples": samples, "losses": losses, "efficiencies": worth[len(worth) // 2 :]}
    (directory / "told").write_text(json.dumps(written))


if __name__ == "__main__":
    main()
