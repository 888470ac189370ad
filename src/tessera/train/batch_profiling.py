"""Profile of a training with variable batches: step times of some batches on one device.

Real steps are timed, with the batches that a device's memory holds, the smallest first. The portal
uses the times before the first run of the job, and on device types on which the job has not run
(bootstrapping of Sia, SOSP '23). Needs PyTorch.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any, Dict, Iterator, List, Optional

import torch

from tessera.train.noise import NoiseScale
from tessera.train.reports import report_event

VARIABLE = "TESSERA_JOB_PROFILE"
VERSION = 1
MOST_SECONDS = 60.0
"""After this time, no further batch is measured."""
MOST_SIZES = 5
WARM_UP, REPEATS = 2, 5


class BatchProfiler:
    """Chooses the batches of a profile, and collects their step times.

    >>> list(BatchProfiler(largest=100).sizes())
    [6, 12, 25, 50, 100]

    Args:
        largest: samples that one device holds at once.
    """

    def __init__(self, largest: int) -> None:
        self._sizes = sorted({max(1, largest >> k) for k in range(MOST_SIZES)})
        self._points: List[Dict[str, Any]] = []
        self._seconds: List[float] = []
        self._began = time.monotonic()
        self.is_out_of_memory = False

    def sizes(self) -> Iterator[int]:
        """Yield the batches, until one does not fit into the memory or the time is over."""
        for size in self._sizes:
            if self.is_out_of_memory or (
                self._points and time.monotonic() - self._began > MOST_SECONDS
            ):
                return
            self._seconds = []
            yield size

    def turns(self) -> Iterator[int]:
        """Yield once for each step of the current batch."""
        for turn in range(WARM_UP + REPEATS):
            if self.is_out_of_memory:
                return
            yield turn

    def add_step(self, seconds: float) -> None:
        """Add the duration of a step."""
        self._seconds.append(seconds)

    def end_size(self, batch: int) -> None:
        """Add the median of the steps of a batch; none if it did not fit."""
        measured = self._seconds[WARM_UP:]
        if len(measured) == REPEATS:
            seconds = REPEATS * max(1e-9, statistics.median(measured))
            point = {"batch": batch, "accumulation": 1, "steps": REPEATS, "seconds": seconds}
            self._points.append(point)

    def report(self, noise: NoiseScale) -> bool:
        """Report the profile; return False if no batch was measured."""
        if not self._points:
            return False
        report_event(
            "profile",
            version=VERSION,
            software={"torch": str(torch.__version__)},
            points=self._points,
            noise=[noise.square, noise.variance] if noise.weight else None,
            seconds=round(max(1e-3, time.monotonic() - self._began), 3),
        )
        return True


def profiler_of_job(largest: int) -> Optional[BatchProfiler]:
    """Return the profiler of a job that only measures a profile; None for other jobs."""
    return BatchProfiler(largest) if os.environ.get(VARIABLE) == "only" else None
