"""Plants: a holder and a guest on one device, in virtual time, to test the control law.

The control law and the gates of ``tessera.node.sharing`` run in closed loop, as on a node. Only
the device and the two programs are test doubles.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final, NamedTuple

from scheduling.core.sharing.device import Serving, SimulatedDevice
from tessera.node.sharing import bounds, gaps, law

LOOK_SECONDS: Final = 0.1
HEARING_SECONDS: Final = 0.02
_WARM_UP_SECONDS: Final = 5.0
_WINDOW_SECONDS: Final = 10.0
_MEAN_SECONDS: Final = 1.0
_RENEWAL_SECONDS: Final = 1.0
_MEMORY: Final = 1 << 30  # the plants have no device memory


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantTurn:
    """A change of the holder.

    Attributes:
        at: time of the change in seconds; None if there is none.
        back: time at which kernels and gaps are as before; None if they stay.
        kernel_seconds: device time of a kernel after the change; None if unchanged.
        gap_seconds: wait of each step after the change; None if unchanged.
        tail: fraction of the steps, from the beginning on, whose wait is longer by an
            exponential of mean one step.
    """

    at: float | None = None
    back: float | None = None
    kernel_seconds: float | None = None
    gap_seconds: float | None = None
    tail: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """A holder, a guest and a device.

    Attributes:
        kernels: kernels in a step of the holder.
        kernel_seconds: device time of each.
        gap_seconds: wait at the end of a step.
        guest_kernel_seconds: device time of a module of the guest, which always has work.
        slowdown: allowed loss of the holder, as a fraction.
        seconds: length of the run.
        serving: how the device serves both.
        noise: relative standard deviation of each kernel and gap.
        turn: what changes.
        contention: see ``device.Device``.
        follows_gaps: whether the guest sees the holder's phase.
        stall_part: fraction of the steps that stall by themselves, as for data or a checkpoint.
        stall_seconds: additional wait of such a step.
    """

    kernels: int
    kernel_seconds: float
    gap_seconds: float
    guest_kernel_seconds: float
    slowdown: float
    seconds: float
    serving: Serving = Serving.EQUAL_PARTS
    noise: float = 0.0
    turn: PlantTurn = PlantTurn()
    contention: float = 1.0
    follows_gaps: bool = True
    stall_part: float = 0.0
    stall_seconds: float = 0.0

    def __post_init__(self) -> None:
        """Reject plants that cannot run.

        Raises:
            ValueError: a number is out of range.
        """
        if self.kernels < 1 or self.gap_seconds < 0 or self.noise < 0:
            raise ValueError("kernels must be positive, gap and noise not negative")
        if min(self.kernel_seconds, self.guest_kernel_seconds, self.seconds) <= 0:
            raise ValueError("seconds of kernels and of the run must be positive")
        kernel, gap = self.turn.kernel_seconds, self.turn.gap_seconds
        if (kernel is not None and kernel <= 0) or (gap is not None and gap < 0):
            raise ValueError("a turn needs positive kernels and a gap that is not negative")
        if not 0 < self.slowdown < 1:
            raise ValueError("the bound must be between 0 and 1")
        if not 0 <= self.stall_part <= 1 or self.stall_seconds < 0:
            raise ValueError("a part of stalls must be 0 to 1, their seconds not negative")

    def kernel_at(self, now: float) -> float:
        """Return the mean device time of a kernel that starts at ``now``."""
        changed = self.turn.kernel_seconds
        return self.kernel_seconds if changed is None or not self._turned(now) else changed

    def gap_at(self, now: float) -> float:
        """Return the mean wait of a step that waits from ``now`` on."""
        changed = self.turn.gap_seconds
        return self.gap_seconds if changed is None or not self._turned(now) else changed

    def _turned(self, now: float) -> bool:
        turn = self.turn
        return turn.at is not None and turn.at <= now < (turn.back or math.inf)


class HolderStep(NamedTuple):
    """A step of the holder: its times, and its seconds without a guest, of equal draws."""

    start: float
    end: float
    alone: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantOutcome:
    """Measurements of a run; losses are delay divided by the time of the holder alone.

    Attributes:
        loss: loss over the steps after 5 s.
        worst_loss: highest loss of any 10 s after 5 s.
        guest_share: device time of the guest as a fraction of the whole run.
        back_in_bounds: seconds after a turn until the loss of the next second is within the
            slowdown, the longer one of both turns; 0 without a turn.
        steps: the holder's steps.
        moves: rules that moved the gate, in order.
    """

    loss: float
    worst_loss: float
    guest_share: float
    back_in_bounds: float
    steps: tuple[HolderStep, ...]
    moves: tuple[law.LawRule, ...]


def run_plant(plant: Plant, seed: int, *, guest: bool = True) -> PlantOutcome:
    """Run a plant for its time.

    Args:
        plant: the plant.
        seed: seed of all draws; the holder's draws do not depend on the guest.
        guest: whether there is a guest at all.
    """
    run = _Run(plant, seed, with_guest=guest)
    run.go()
    late = [step for step in run.steps if step.start >= _WARM_UP_SECONDS]
    return PlantOutcome(
        loss=_loss(late),
        worst_loss=_worst_loss(late),
        guest_share=run.device.guest_work / plant.seconds,
        back_in_bounds=_back_in_bounds(plant, run.steps),
        steps=tuple(run.steps),
        moves=tuple(run.moves),
    )


class _Run:
    """Event loop over the holder, the guest, the device and the coordinator."""

    def __init__(self, plant: Plant, seed: int, *, with_guest: bool) -> None:
        self.plant = plant
        self.device = SimulatedDevice(plant.serving, plant.contention)
        self.steps: list[HolderStep] = []
        self.moves: list[law.LawRule] = []
        self._now = 0.0
        self._draws, self._guest_draws = Random(seed), Random(f"guest {seed}")  # noqa: S311 tests
        self._limits = law.Limits(plant.slowdown, HEARING_SECONDS + 2 * plant.guest_kernel_seconds)
        self._state = law.initial(self._limits)
        self._reported = 0
        self._look_at = LOOK_SECONDS if with_guest else math.inf
        self._sent: bounds.Bound | None = None
        self._on_the_way: deque[tuple[float, bounds.Bound]] = deque()
        self._bound: bounds.Bound | None = None
        self._follower = gaps.Follower()
        self._phase = gaps.StepPhase(busy=True, since=0.0)
        self._gap_end = self._ask_at = math.inf
        self._start_step()

    def go(self) -> None:
        """Handle events in order of their times until the end of the run."""
        device, end = self.device, self.plant.seconds
        while True:
            heard_at = self._on_the_way[0][0] if self._on_the_way else math.inf
            timers = min(self._gap_end, self._look_at, heard_at, self._ask_at)
            until = min(self._now + device.next_end(), timers, end)
            device.advance(until - self._now)
            self._now = until
            if until >= end:
                return
            if device.take_holder():
                self._kernel_ended()
            if device.take_guest():
                self._ask()
            self._handle(self._gap_end, self._gap_ended)
            self._handle(heard_at, self._hear)
            self._handle(self._look_at, self._look)
            self._handle(self._ask_at, self._ask)

    def _handle(self, at: float, event: Callable[[], None]) -> None:
        if at <= self._now:
            event()

    # The holder.

    def _start_step(self) -> None:
        self._started, self._alone, self._left = self._now, 0.0, self.plant.kernels
        self._start_kernel()

    def _start_kernel(self) -> None:
        seconds = self.plant.kernel_at(self._now) * self._jitter(self._draws)
        self._alone += seconds
        self.device.submit_holder(seconds)

    def _kernel_ended(self) -> None:
        self._left -= 1
        if self._left:
            self._start_kernel()
            return
        seconds = self._gap_seconds()
        self._alone += seconds
        if seconds > 0:
            self._gap_end = self._now + seconds
            self._change_phase(busy=False)
        else:
            self._end_step()

    def _gap_seconds(self) -> float:
        plant, draws = self.plant, self._draws
        mean = plant.gap_at(self._now)
        seconds = mean * self._jitter(draws)
        if plant.turn.tail and draws.random() < plant.turn.tail:
            seconds += draws.expovariate(1 / (plant.kernels * plant.kernel_at(self._now) + mean))
        if plant.stall_part and draws.random() < plant.stall_part:
            seconds += plant.stall_seconds
        return seconds

    def _gap_ended(self) -> None:
        self._gap_end = math.inf
        self._follower = gaps.after_gap(self._follower, self._now - self._phase.since)
        self._change_phase(busy=True)
        self._end_step()

    def _end_step(self) -> None:
        self.steps.append(HolderStep(self._started, self._now, self._alone))
        self._start_step()

    def _change_phase(self, *, busy: bool) -> None:
        self._phase = gaps.StepPhase(busy=busy, since=self._now)
        if self._ask_at < math.inf:
            self._ask_at = min(self._ask_at, self._now + gaps.SLICE_SECONDS)

    def _jitter(self, draws: Random) -> float:
        noise = self.plant.noise
        return max(0.05, draws.gauss(1.0, noise)) if noise else 1.0

    # The guest.

    def _hear(self) -> None:
        closed = bounds.compute_at(self._bound, self._now) <= 0
        self._bound = bounds.newest(self._bound, self._on_the_way.popleft()[1])
        if closed and self.device.guest is None:
            self._follower = gaps.after_closed(self._follower, self._now)
            self._ask()

    def _ask(self) -> None:
        plant = self.plant
        compute = bounds.compute_at(self._bound, self._now)
        phase = self._phase if plant.follows_gaps else None
        module = plant.guest_kernel_seconds
        self._ask_at = math.inf
        self._follower, answer = gaps.ask(self._follower, self._now, compute, module, phase)
        if answer.go:
            self.device.submit_guest(module * self._jitter(self._guest_draws))
        elif compute > 0:
            self._ask_at = self._now + answer.wait_seconds

    # The coordinator.

    def _look(self) -> None:
        now = self._now
        self._look_at = now + LOOK_SECONDS
        new = [law.HolderStep(step.start, step.end) for step in self.steps[self._reported :]]
        self._reported = len(self.steps)
        before = self._state
        self._state = law.look(before, new, now, self._limits)
        if self._state.is_open != before.is_open:
            self.moves.append(self._state.rule)
        compute = self._state.compute if self._state.is_open else 0.0
        sent = self._sent
        left = 0.0 if sent is None else sent.until - now
        if sent is None or sent.compute != compute or left < bounds.LIFETIME_SECONDS - 1:
            self._sent = bounds.issued(sent, compute, _MEMORY, now)
            self._on_the_way.append((now + HEARING_SECONDS, self._sent))


def _loss(steps: list[HolderStep]) -> float:
    alone = sum(step.alone for step in steps)
    return sum(step.end - step.start for step in steps) / alone - 1 if alone else 0.0


def _worst_loss(steps: list[HolderStep]) -> float:
    """Return the highest loss over all windows of consecutive steps of at most 10 s."""
    window: deque[HolderStep] = deque()
    taken = alone = 0.0
    worst = None
    for step in steps:
        window.append(step)
        taken += step.end - step.start
        alone += step.alone
        while len(window) > 1 and step.end - window[0].start > _WINDOW_SECONDS:
            first = window.popleft()
            taken -= first.end - first.start
            alone -= first.alone
        if step.end - steps[0].start >= _WINDOW_SECONDS:
            worst = max(taken / alone - 1, -math.inf if worst is None else worst)
    return _loss(steps) if worst is None else worst


def _back_in_bounds(plant: Plant, steps: list[HolderStep]) -> float:
    turns = [at for at in (plant.turn.at, plant.turn.back) if at is not None]
    return max((_after_turn(plant, steps, at) for at in turns), default=0.0)


def _after_turn(plant: Plant, steps: list[HolderStep], turn: float) -> float:
    after = [step for step in steps if step.end > turn]
    for number, first in enumerate(after):
        begin = max(first.start, turn)
        second = [step for step in after[number:] if step.start < begin + _MEAN_SECONDS]
        if _loss(second) <= plant.slowdown:
            return begin - turn
    return max(plant.seconds - turn, 0.0)
