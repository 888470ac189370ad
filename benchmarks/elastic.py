"""Cost of elastic training: logical workers, reports, preemption and resumption.

Logical workers and plain micro-batches do the same work in one process and in turns, so that
disturbances of the machine affect both; processor time is compared. Needs PyTorch (the extra
``train``).
"""

import argparse
import importlib.util
import json
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

WORKERS = 4
ROUNDS = 100
LEAVES = 100


def main() -> None:
    """Measure and print entries, one per line; without PyTorch, print only a message."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        print("elastic: PyTorch is not installed, nothing is measured", file=sys.stderr)
        return
    lost, away = leaves()
    show(
        "preempted_work_lost_p99", percentile(lost, 99), "steps", f"{LEAVES} loops asked to leave"
    )
    show(
        "leave_and_come_back_p50",
        statistics.median(away),
        "s",
        "in the job, without Python's start",
    )
    step_ms = 0.0
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["TESSERA_JOB_CHECKPOINT_DIR"] = f"{scratch}/checkpoints"
        for name in ("resnet", "transformer"):
            figures = measure(name, options.rounds)
            step_ms = figures["plain_ms"]
            context = (
                f"{WORKERS} logical workers in one process, {figures['logical_ms']:.0f} ms a step,"
                f" plain micro-batches {figures['plain_ms']:.0f} ms; processor time"
            )
            show(f"logical_workers_overhead_{name}", figures["overhead_percent"], "%", context)
    asking, telling = microseconds_of_should_yield(), microseconds_of_a_report()
    show("should_yield_cost", asking, "us", "one call, nothing asked")
    show("report_cost", telling, "us", "one call of tessera.train.report")
    share = 100 * (asking + telling) / (1000 * step_ms)
    show("reporting_overhead", share, "%", f"both in a step of {step_ms:.0f} ms (transformer)")


def show(name: str, value: float, unit: str, context: str) -> None:
    entry = {"name": name, "value": round(value, 3), "unit": unit, "better": "lower"}
    print(json.dumps({**entry, "context": context}), flush=True)


def percentile(values: list[float], part: int) -> float:
    return sorted(values)[min(len(values) - 1, len(values) * part // 100)]


# -- leaving and coming back ----------------------------------------------------------------------


def leaves() -> tuple[list[float], list[float]]:
    """Return the lost steps of each of many stopped loops, and the seconds until the next step.

    Each is a process that gets a notice at a random instant; another resumes from its checkpoint.
    The time begins when the notice is written and ends with the first step of the second process;
    the start of that process is subtracted.
    """
    context = multiprocessing.get_context("fork")
    chance = random.Random(1)
    lost, away = [], []
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(LEAVES):
            directory = Path(scratch, str(number))
            directory.mkdir()
            first = context.Process(target=loop, args=(directory, "first", 1 << 30))
            first.start()
            while not (directory / "first").exists():
                time.sleep(0.002)
            time.sleep(chance.uniform(0, 0.05))
            asked = time.monotonic()
            part = directory / ".control"
            part.write_text('{"notice": "resize"}')
            part.rename(directory / "control.json")
            first.join()
            left = time.monotonic()
            (directory / "control.json").unlink()
            second = context.Process(target=loop, args=(directory, "second", 1))
            second.start()
            second.join()
            done, _ = json.loads((directory / "first").read_text())
            begun, seconds = json.loads((directory / "second").read_text())
            lost.append(float(done - begun))
            away.append(left - asked + seconds)
    return lost, away


def loop(directory: Path, name: str, more: int) -> None:
    """Run steps of five milliseconds; writes the number of done steps, or the resumed step."""
    os.environ.update(
        TESSERA_JOB_CONTROL=f"{directory}/control.json",
        TESSERA_JOB_REPORTS=f"{directory}/reports.jsonl",
        TESSERA_JOB_CHECKPOINT_DIR=f"{directory}/checkpoints",
    )
    from tessera import train

    began = time.monotonic()
    state = {"done": 0, "weights": bytes(4 << 20)}
    turns = train.Loop(1 << 30, save=lambda: state, load=state.update)
    for made, step in enumerate(turns):
        if name == "second":
            (directory / name).write_text(json.dumps([step, time.monotonic() - began]))
            return
        time.sleep(0.005)
        state["done"] = step + 1
        (directory / name).write_text(json.dumps([step + 1, 0.0]))
        turns.report(samples=1)
        if made >= more:
            return


# -- logical workers ------------------------------------------------------------------------------


def measure(name: str, rounds: int) -> dict[str, float]:
    """Median processor times of a plain and a logical step, and the median ratio of pairs."""
    plain, logical = plain_steps(name), logical_steps(name)
    for steps in (plain, logical):
        cpu_of(steps, freely=steps is plain)
    pairs = []
    for number in range(rounds):
        sides = (plain, logical) if number % 2 else (logical, plain)
        times = {side: cpu_of(side, freely=side is plain) for side in sides}
        pairs.append((times[plain], times[logical]))
    return {
        "plain_ms": 1000 * statistics.median(before for before, _ in pairs),
        "logical_ms": 1000 * statistics.median(after for _, after in pairs),
        "overhead_percent": 100 * (statistics.median(b / a for a, b in pairs) - 1),
    }


def cpu_of(steps: Callable[[int], None], *, freely: bool) -> float:
    """Processor time of a step; plain PyTorch may choose its kernels."""
    import torch

    torch.use_deterministic_algorithms(not freely)
    began = time.process_time()
    steps(1)
    return time.process_time() - began


def plain_steps(name: str) -> Callable[[int], None]:
    """Sequential micro-batches, accumulated as in a script without Tessera."""
    import torch
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    model, optimizer, data, batch_size = parts(name)
    loader = DataLoader(data, batch_size=batch_size, shuffle=True, drop_last=True)

    def endless() -> Any:
        while True:
            yield from loader

    batches = endless()

    def steps(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            for _ in range(WORKERS):
                (loss_of(model, next(batches)) / WORKERS).backward()
            optimizer.step()

    return steps


def logical_steps(name: str) -> Callable[[int], None]:
    """Run the same steps with logical workers in one process."""
    from tessera.train import Feed, LogicalWorkers

    model, optimizer, data, batch_size = parts(name)
    feed = Feed(data, batch_size=batch_size, draws=False)
    elastic = LogicalWorkers(model, optimizer, feed, workers=WORKERS)
    turns = elastic.steps(1 << 40)

    def steps(count: int) -> None:
        for _ in range(count):
            next(turns)
            elastic.step(lambda batch: loss_of(model, batch))

    return steps


def loss_of(model: Any, batch: Any) -> Any:
    from torch import nn

    inputs, labels = batch
    return nn.functional.cross_entropy(model(inputs), labels)


def parts(name: str) -> Any:
    """Model, optimizer, data and batch size of one logical worker."""
    import torch
    from torch import nn
    from torch.utils.data import TensorDataset

    torch.manual_seed(0)
    labels = torch.randint(0, 10, (2048,))
    if name == "resnet":
        model: Any = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), residual(16), residual(16), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), residual(32), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(32, 10),
        )  # fmt: skip
        inputs, batch = torch.randn(2048, 3, 32, 32), 32
    else:
        layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
        encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        model = nn.Sequential(
            nn.Embedding(64, 128), encoder, nn.Flatten(), nn.Linear(64 * 128, 10)
        )
        inputs, batch = torch.randint(0, 64, (2048, 64)), 8
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return model, optimizer, TensorDataset(inputs, labels), batch


def residual(width: int) -> Any:
    """Two convolutions with batch normalisation and a shortcut."""
    from torch import nn

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
                nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width),
            )  # fmt: skip

        def forward(self, inputs: Any) -> Any:
            return nn.functional.relu(inputs + self.body(inputs))

    return Residual()


def microseconds_of_a_report() -> float:
    """Processor time of one call of `tessera.train.report` in a job, at 1,000 steps a second."""
    from tessera.train import report

    with tempfile.TemporaryDirectory() as scratch:
        os.environ["TESSERA_JOB_REPORTS"] = f"{scratch}/reports.jsonl"
        began = time.process_time()
        for step in range(20_000):
            report(step=step, samples=32, step_seconds=0.001, loss=1.0)
        seconds = time.process_time() - began
        del os.environ["TESSERA_JOB_REPORTS"]
    return 1e6 * seconds / 20_000


def microseconds_of_should_yield() -> float:
    """Processor time of one call of `tessera.train.should_yield` in a job."""
    from tessera.train import should_yield

    with tempfile.TemporaryDirectory() as scratch:
        os.environ["TESSERA_JOB_CONTROL"] = f"{scratch}/control.json"
        began = time.process_time()
        for _ in range(20_000):
            should_yield()
        seconds = time.process_time() - began
        del os.environ["TESSERA_JOB_CONTROL"]
    return 1e6 * seconds / 20_000


if __name__ == "__main__":
    main()
