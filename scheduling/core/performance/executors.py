"""The best number of processes (executors) of a job on one device, by measurement.

The effect of a second process on a device is not predictable. So a job whose owner allows several
begins with one. After its measurement, one more is tried once on each type, and retained if the
throughput of the device increases (EasyScale, SC '23, 3.4).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from scheduling.core.lifecycle import FailureClass
from scheduling.core.performance.reverts import MARGIN, is_long
from scheduling.core.policy_interface import Alloc, PolicyJob
from scheduling.core.values import RunObservation

OWN_FAULTS: Final = frozenset({FailureClass.USER, FailureClass.RESOURCE_LIMIT})
"""Failures that too many processes on a device may cause, such as full memory."""

HOPE: Final = 1.05
"""Assumed gain of a device with one more process, before a measurement."""


def sharing_of(
    seen: Sequence[RunObservation], workers: int, most: int, *, failed: int | None = None
) -> Mapping[str, tuple[float, ...]]:
    """Return by type the pace of one of n processes on a device, relative to a single process.

    The first value is 1, followed by the sufficiently measured values. If the last one was the
    best, one extrapolated value follows.

    Args:
        seen: the job's runs.
        workers: its logical workers; each makes one mini-batch a step.
        most: processes that may share a device.
        failed: the smallest number with which a run has failed; it and larger ones are not tried
            again.
    """
    most = most if failed is None else min(most, failed - 1)
    found: dict[str, tuple[float, ...]] = {}
    for kind in sorted({run.type for run in seen}) if most > 1 else ():
        rates = _measured([run for run in seen if run.type == kind], workers)
        paces: list[float] = []
        while len(paces) < most and len(paces) + 1 in rates:
            paces.append(rates[len(paces) + 1] / rates[1])
        devices = [number * pace for number, pace in enumerate(paces, start=1)]
        if devices and len(devices) < most and devices[-1] == max(devices):
            paces.append(devices[-1] * HOPE / (len(devices) + 1))
        if len(paces) > 1:
            found[kind] = tuple(paces)
    return found


def shared_by(layout: Sequence[Sequence[int]] | None, devices: int) -> int:
    """Return the minimum number of processes per device of a layout; 0 without sharing.

    With uneven numbers on the devices, two count as the minimum.

    Args:
        layout: layout of logical workers over processes.
        devices: devices of all members.
    """
    executors = executors_in(layout, devices)
    return 0 if not layout or executors == 1 else executors or 2


def executors_on(workers: int, devices: int, paces: Sequence[float]) -> int:
    """Return the number of processes per device with the shortest step; the smaller in a tie.

    Args:
        workers: logical workers; each process has at least one.
        devices: number of devices.
        paces: pace of one of n processes on a device, from ``sharing_of``.
    """
    numbers = [n for n in range(1, len(paces) + 1) if n * devices <= workers]
    return min(numbers, key=lambda n: (_step(workers, devices, n, paces), n), default=1)


def executors_in(layout: Sequence[Sequence[int]] | None, devices: int) -> int:
    """Return the processes per device of a layout; 0 if unequal, 1 without a layout.

    Args:
        layout: layout of logical workers over processes.
        devices: devices of all members.
    """
    processes = sum(map(len, layout)) if layout else devices
    return 0 if devices < 1 or processes % devices else processes // devices


def sharing_gain(job: PolicyJob, kind: str, devices: int, executors: int | None) -> float:
    """Return the speed of a job with several processes per device, relative to one.

    The result is 1 without a measurement.

    Args:
        job: the job with its logical workers and measurements.
        kind: the type of the devices.
        devices: number of devices.
        executors: processes on each device; None for the driver's best number.
    """
    paces, workers = job.facts.sharing.get(kind, ()), job.terms.logical_workers
    if not paces or workers is None:
        return 1.0
    number = executors_on(workers, devices, paces) if executors is None else executors
    if not 1 <= number <= len(paces):
        return 1.0
    return _step(workers, devices, 1, paces) / _step(workers, devices, number, paces)


def fewer_are_faster(job: PolicyJob, held: Alloc | None) -> int | None:
    """Return a smaller, faster number of processes per device of a running job, or None."""
    number = job.facts.executors
    kinds = {part.type for part in held.parts} if held is not None else set()
    workers = job.terms.logical_workers
    if held is None or number < 2 or len(kinds) != 1 or workers is None:
        return None
    paces = job.facts.sharing.get(kinds.pop() or "", ())
    if len(paces) < number:
        return None

    best = executors_on(workers, held.devices, paces[: number - 1])
    seconds = _step(workers, held.devices, best, paces)
    return best if seconds < MARGIN * _step(workers, held.devices, number, paces) else None


def _step(workers: int, devices: int, executors: int, paces: Sequence[float]) -> float:
    """Return the time of a step, in mini-batches of a process alone."""
    return -(-workers // (executors * devices)) / paces[executors - 1]


def _measured(runs: Sequence[RunObservation], workers: int) -> Mapping[int, float]:
    """Return the mini-batches per second of one process, by the number that share a device."""
    batches: dict[int, float] = defaultdict(float)
    seconds: dict[int, float] = defaultdict(float)
    for run in runs:
        if run.executors > 0 and is_long(run):
            # A step takes as long as the process with the most workers.
            batches[run.executors] += run.steps * -(-workers // (run.devices * run.executors))
            seconds[run.executors] += run.seconds
    return {number: batches[number] / seconds[number] for number in sorted(batches)}
