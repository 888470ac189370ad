"""Epochs: the common part of simulated training jobs of Pollux's and Sia's artefacts."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from scheduling.core.performance.learned import LearnedModel
from scheduling.core.simulator.profiles import Placement
from scheduling.core.simulator.traces import TraceJob


class EpochJob(ABC):
    """A job that trains for a fixed number of epochs; all times in seconds of the simulated clock.

    How useful a second is changes with the epoch, and so does the best batch.
    """

    def __init__(self, index: int, job: TraceJob) -> None:
        self.index = index
        self.job = job
        self.progress = 0.0
        self.epoch = 0
        self.placement: Placement = ()
        self.batch: int | None = None
        self.local_batch = 0
        self.accumulation = 0
        self.countdown = 0.0
        self.starts = 0
        self.started: float | None = None
        self.finished: float | None = None
        self.since = job.submitted
        self.last_run: float | None = None
        self.executed = 0.0
        self.attained = 0.0
        self.learnt = False

    @property
    def restarts(self) -> int:
        """Starts after the first."""
        return max(0, self.starts - 1)

    @abstractmethod
    def _useful_rate(self, model: LearnedModel) -> float:
        """Progress per second as it truly is now; the job learns from it."""

    @abstractmethod
    def _choose_batch(self, model: LearnedModel) -> None:
        """Set the batch of the next steps from the known facts."""

    def _train(
        self, start: float, seconds: float, milestones: Sequence[float], model: LearnedModel
    ) -> None:
        """Make progress for ``seconds`` from ``start``, or until it is complete.

        Args:
            start: when it begins.
            seconds: maximum duration.
            milestones: progress at the end of each epoch.
            model: learns from each rate, and helps to choose the batch after it.
        """
        waiting = min(self.countdown, seconds)
        self.countdown -= waiting
        clock, left = start + waiting, seconds - waiting
        while left > 0 and self.finished is None:
            rate = self._useful_rate(model)
            milestone = milestones[self.epoch]
            if self.progress + rate * left < milestone:
                self.progress += rate * left
                clock, left = clock + left, 0.0
            else:
                taken = round((milestone - self.progress) / rate)
                self.progress = milestone
                self.epoch += 1
                clock, left = clock + taken, left - taken
                if self.epoch == len(milestones):
                    self.finished = clock
            self._choose_batch(model)
