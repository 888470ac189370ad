"""Replay of a pipeline schedule, event by event.

A closed formula for the time of a step is exact for GPipe only. Under 1F1B, the round trip over
a link between stages is partly exposed, so the planner replays the actions that the trainer runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from scheduling.core.grids.model import GridInputError, Schedule


class Action(NamedTuple):
    """One forward or backward pass of one micro-batch through one stage."""

    stage: int
    backward: bool
    micro_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Durations of a pipeline.

    Attributes:
        forward: seconds of a forward pass of one micro-batch, by stage.
        backward: seconds of a backward pass of one micro-batch, by stage.
        transfer: seconds to send the activations of one micro-batch to the next stage, by link.
        transfer_back: seconds to send their gradients back, by link; as ``transfer`` if None.
        micro_batches: number of micro-batches in a step.
    """

    forward: Sequence[float]
    backward: Sequence[float]
    transfer: Sequence[float]
    transfer_back: Sequence[float] | None = None
    micro_batches: int

    def __post_init__(self) -> None:
        """Reject lists of different lengths and an empty pipeline."""
        links = self.transfer if self.transfer_back is None else self.transfer_back
        lengths = {len(self.forward), len(self.backward), len(self.transfer) + 1, len(links) + 1}
        if lengths != {max(len(self.forward), 1)}:
            raise GridInputError(
                f"{len(self.forward)} forward, {len(self.backward)} backward and"
                f" {len(self.transfer)} transfer times do not fit together.",
                field="forward",
                value=len(self.forward),
                remedy="Use one value per stage, and one transfer less than stages.",
            )
        if self.micro_batches < 1:
            raise GridInputError(
                f"{self.micro_batches} is less than 1.",
                field="micro_batches",
                value=self.micro_batches,
                remedy="Use at least 1.",
            )


class Pass(NamedTuple):
    """A replayed action, with its start and end in seconds from the start of the step."""

    action: Action
    start: float
    end: float


class Replayed(NamedTuple):
    """Times of a replayed step.

    Attributes:
        seconds: time from the first forward pass to the end of the last backward pass.
        finishes: time at which each stage ends its last backward pass.
    """

    seconds: float
    finishes: tuple[float, ...]


def stage_actions(schedule: Schedule, stage: int, stages: int, micro_batches: int) -> list[Action]:
    """Return the actions of one stage in order, as PyTorch's schedules of the same names run them.

    GPipe (Huang et al., NeurIPS '19): all forward passes, then all backward passes. 1F1B
    (PipeDream-Flush, Narayanan et al., ICML '21): ``min(stages - stage, micro_batches)`` forward
    passes, then a backward and a forward pass in turn.
    """
    ahead = schedule.in_flight(stage, stages, micro_batches)
    actions = [Action(stage, False, m) for m in range(ahead)]
    for m in range(micro_batches):
        actions.append(Action(stage, True, m))
        if ahead + m < micro_batches:
            actions.append(Action(stage, False, ahead + m))
    return actions


def replay(schedule: Schedule, pipeline: Pipeline, passes: list[Pass] | None = None) -> Replayed:
    """Replay one step of a pipeline.

    A stage runs its actions in order, each as soon as its input has arrived. A link carries one
    transfer at a time in each direction, and transfers overlap with computation.

    Args:
        schedule: order of the actions.
        pipeline: their durations.
        passes: gets each pass with its times, if given.
    """
    forward, backward = pipeline.forward, pipeline.backward
    ahead = pipeline.transfer
    back = ahead if pipeline.transfer_back is None else pipeline.transfer_back
    last = len(forward) - 1
    free = [0.0] * (last + 1)  # end of the last action, by stage
    sent = [0.0] * last  # end of the last transfer to the next stage, by link
    returned = [0.0] * last
    arrived = [[0.0] * pipeline.micro_batches for _ in forward]
    gradients = [[0.0] * pipeline.micro_batches for _ in forward]
    for action in _order(schedule, last + 1, pipeline.micro_batches):
        stage, is_backward, m = action
        now = free[stage]
        if is_backward:
            now = max(now, gradients[stage][m]) + backward[stage]
            if stage:
                link = stage - 1
                returned[link] = gradients[link][m] = max(returned[link], now) + back[link]
        else:
            now = max(now, arrived[stage][m]) + forward[stage]
            if stage < last:
                sent[stage] = arrived[stage + 1][m] = max(sent[stage], now) + ahead[stage]
        free[stage] = now
        if passes is not None:
            seconds = backward[stage] if is_backward else forward[stage]
            passes.append(Pass(action, now - seconds, now))
    return Replayed(max(free), tuple(free))


@lru_cache(maxsize=256)
def _order(schedule: Schedule, stages: int, micro_batches: int) -> tuple[Action, ...]:
    """Return the actions of all stages so that each one comes after those that it depends on."""
    waiting = [
        list(reversed(stage_actions(schedule, s, stages, micro_batches))) for s in range(stages)
    ]
    forwards = [0] * stages  # passes done; each stage runs them in the order of micro-batches
    backwards = [0] * stages
    order: list[Action] = []
    while len(order) < 2 * stages * micro_batches:
        for stage, actions in enumerate(waiting):
            while actions:
                _, is_backward, m = actions[-1]
                if is_backward and stage < stages - 1 and backwards[stage + 1] <= m:
                    break
                if not is_backward and stage and forwards[stage - 1] <= m:
                    break
                (backwards if is_backward else forwards)[stage] += 1
                order.append(actions.pop())
    return tuple(order)
