"""How well goodput is foretold: step times of pairs not seen, and what larger batches are worth.

The examples' models train with one to as many processes as there are processors, one thread each.
Half of the pairs of processes and batch are what the throughput model is fitted to; the other half
is foretold and measured. Then the statistical efficiency that the noise scale promises a larger
batch is compared with the samples that it really needed to the same loss. Needs PyTorch.
"""

import importlib.util
import json
import math
import os
import runpy
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from tessera.efficiency import efficiency

os.environ.setdefault("OMP_NUM_THREADS", "1")

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
LOCAL_BATCHES = (8, 16, 24, 32, 48, 64, 96, 128)
STEPS, WARM = 40, 8
INITIAL, LARGER, PARTS, PROGRESS = 32, 128, 4, 240
RATES = {"pictures": 0.02, "gpt": 0.1}
SMOOTHING = 0.95


def main() -> None:
    """Measure and print entries, one a line; nothing, and a word, where PyTorch is missing."""
    if importlib.util.find_spec("torch") is None:
        print("goodput: PyTorch is not installed, nothing is measured", file=sys.stderr)
        return
    for name in ("pictures", "gpt"):
        errors = errors_of_step_times(name)
        context = f"{len(errors)} unseen pairs of processes and batch, worst {max(errors):.0f} %"
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


def errors_of_step_times(name: str) -> list[float]:
    """Errors, in percent, of the step times of pairs that the fit has not seen."""
    from scheduling.core.perf.fitting import Observation, fit_throughput
    from scheduling.core.perf.throughput import exchange_time, pass_times, step_times

    most = len(os.sched_getaffinity(0))
    # Batches take turns, so that the machine's moods meet what is seen and what is not alike.
    seen, unseen = [], []
    for processes in range(1, most + 1):
        for place, local in enumerate(LOCAL_BATCHES):
            step, sync = measured_step(name, processes, local)
            observation = Observation(1, processes, local, step, min(sync, 0.9 * step))
            (unseen if place % 2 else seen).append(observation)
    model = fit_throughput(tuple(seen))
    errors = []
    for one in unseen:
        passes = pass_times(model, one.local_batch)
        exchange = exchange_time(model, one.nodes, one.devices)
        foretold = float(step_times(model, passes, exchange, 0))
        errors.append(100 * abs(foretold / one.step - 1))
    return errors


def measured_step(name: str, processes: int, local: int) -> tuple[float, float]:
    """Seconds of a step, and of the part in which gradients are exchanged.

    Lower quartiles: what neighbours on the machine take is no part of a step.
    """
    from tests.support.elastic_training import together

    with tempfile.TemporaryDirectory() as scratch:
        codes = together(make_steps, processes, (name, processes, local), Path(scratch))
        if codes != [0] * processes:
            raise RuntimeError(f"{name} with {processes} processes ended with {codes}")
        found = [json.loads(Path(scratch, f"rank{rank}").read_text()) for rank in range(processes)]
    steps = [max(times) for times in zip(*(one["steps"] for one in found), strict=True)]
    # Who comes first waits for the others: only the shortest wait is exchange.
    syncs = [min(times) for times in zip(*(one["syncs"] for one in found), strict=True)]
    return lower_quartile(steps[WARM:]), lower_quartile(syncs[WARM:])


def lower_quartile(values: list[float]) -> float:
    return statistics.quantiles(values, n=4)[0]


def make_steps(case: tuple[str, int, int], directory: Path, rank: int, port: int) -> None:
    """Train for some steps and write down how long each took."""
    from tests.support.elastic_training import be_rank

    name, processes, local = case
    be_rank(rank, processes, port, directory)
    adaptive, forward = training(name, initial=local * processes, largest_micro=local)
    told = reports_of(adaptive, forward, progress=STEPS)
    times = {
        "steps": [one["step_seconds"] for one in told],
        "syncs": [one["sync_seconds"] for one in told],
    }
    (directory / f"rank{rank}").write_text(json.dumps(times))


def training(name: str, *, initial: int, largest_micro: int) -> tuple[Any, Any]:
    """An example's model under an adaptive batch, and what gives its loss."""
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
    """What a training reports, step by step."""
    from tessera.train import adaptive as module

    told: list[dict[str, Any]] = []
    module.report = lambda **report: told.append(report)  # type: ignore[assignment]
    for _ in adaptive.steps(progress):
        adaptive.step(forward)
    return told


# -- efficiency -----------------------------------------------------------------------------------


def efficiencies(name: str) -> tuple[float, float]:
    """Progress per sample of the larger batch against the initial one: foretold, and measured.

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
            if together(make_progress, 1, name, directory) != [0]:
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
    """Train for as much progress; writes down samples seen, smoothed losses and efficiencies."""
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
