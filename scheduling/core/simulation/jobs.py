"""Progress of one simulated job: work, speed, costs of starts, and loss by failures."""

from dataclasses import dataclass
from typing import Final

from scheduling.core.values import QueuedJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """Seconds that a job holds devices without progress, or loses.

    Attributes:
        start: from each start to the first progress.
        restart: additional seconds of a start after a preemption, resize or failure.
        checkpoint: interval of checkpoints; a failure loses the progress since the last one. None:
            a failure loses nothing.
    """

    start: float = 0.0
    restart: float = 0.0
    checkpoint: float | None = None


NO_OVERHEAD: Final = Overhead()


@dataclass(slots=True)
class JobProgress:
    """Progress of one job that holds devices or has held some.

    Attributes:
        job: its queued state after a preemption.
        left: remaining seconds at the requested size, as of ``since``.
        since: start of the progress that ``left`` does not contain; in the future during a start.
        rate: speed relative to the requested size; 0 without progress.
        full: the speed on its devices without guests, or of a guest without its holder.
        version: increases with each change of its devices, so that older events are stale.
        done: progress until ``since``, in seconds at the requested size.
        began: start of the progress of the current run.
        left_then: ``left`` at that time.
        observed: time up to which the job facts contain its use of devices.
        observed_left: ``left`` that the job facts contain.
    """

    job: QueuedJob
    left: float
    since: float
    rate: float = 0.0
    full: float = 0.0
    version: int = 0
    done: float = 0.0
    began: float = 0.0
    left_then: float = 0.0
    observed: float = 0.0
    observed_left: float = 0.0

    @property
    def end(self) -> float:
        """Time at which the work is complete at the present speed."""
        return self.since + self.left / self.rate

    def begin(self, now: float, rate: float, delay: float) -> None:
        """Start a run that makes progress after ``delay`` seconds."""
        self.since = self.began = now + delay
        self.left_then = self.left
        self.rate = self.full = rate
        self.version += 1

    def set_pace(self, now: float, pace: float) -> bool:
        """Set the speed to a part of the full speed; return whether it has changed."""
        if self.rate == self.full * pace:
            return False
        self.advance(now)
        self.rate = self.full * pace
        self.version += 1
        return True

    def advance(self, now: float) -> None:
        """Add the progress until ``now``."""
        if now <= self.since:
            return
        progress = (now - self.since) * self.rate
        self.left = max(0.0, self.left - progress)
        self.done += progress
        self.since = now

    def stop(self, now: float) -> None:
        """End the progress of the run at a notice; the job saves its state."""
        self.advance(now)
        self.rate = self.full = 0.0
        self.version += 1

    def fail(self, now: float, checkpoint: float | None) -> float:
        """End the run without notice; return the lost progress since the last checkpoint."""
        rate = self.rate
        self.stop(now)
        if checkpoint is None or rate <= 0.0:
            return 0.0
        ran = max(0.0, now - self.began)
        saved = ran // checkpoint * checkpoint if checkpoint > 0.0 else ran
        lost = max(0.0, self.left_then - saved * rate - self.left)
        self.left += lost
        self.done -= lost
        return lost

    def progress(self, now: float) -> float:
        """Return the seconds of progress until ``now``, as if at the requested size."""
        return self.done + max(0.0, now - self.since) * self.rate
