"""Drawing of the micro-batches of one step over the stages of a parallel plan."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from django.utils.translation import gettext as _

from portal.web.components import words
from scheduling.parallelism.views import JobParallelism

if TYPE_CHECKING:
    from scheduling.core.grids.pipeline import Pass

MOST_PASSES: Final = 1_024
"""Maximum number of passes that are drawn; of a longer step, only the figures are shown."""
LABELLED: Final = 1.6
"""Minimum width of a pass with a number, in percent of the step."""
LONGEST_ORDER: Final = 64
"""Maximum number of passes of a stage that the table lists."""
BACKWARD: Final = 2.0
"""Assumed duration of a backward pass relative to a forward pass, without a profile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassDrawing:
    """One forward or backward pass.

    Attributes:
        micro_batch: number of the micro-batch, from 1.
        is_backward: whether it is a backward pass.
        start: start in percent of the step.
        width: duration in percent of the step.
        label: its number, if it is wide enough.
    """

    micro_batch: int
    is_backward: bool
    start: str
    width: str
    label: str

    @property
    def title(self) -> str:
        """The pass as text."""
        text = (
            _("Backward pass of micro-batch %(number)s")
            if self.is_backward
            else _("Forward pass of micro-batch %(number)s")
        )
        return text % {"number": words.count(self.micro_batch)}


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSchedule:
    """The passes of one stage.

    Attributes:
        number: index of the stage, from 0.
        passes: its passes in order; empty if the step has too many.
        order: the passes as text: ``F1 F2 B1 F3 B2 …``.
        forward, backward: seconds of a pass of one micro-batch; None if unknown.
        busy: share of the step in which the stage computes.
    """

    number: int
    passes: tuple[PassDrawing, ...]
    order: str
    forward: float | None
    backward: float | None
    busy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleDrawing:
    """One step of a plan, replayed by the planner.

    Attributes:
        schedule: ``1f1b`` or ``gpipe``.
        micro_batches: number of micro-batches.
        stages: by number.
        seconds: time from the first to the last pass; None if only ratios are known.
        idle: share of the step in which the stages wait, on average.
        summary: the drawing as a sentence.
    """

    schedule: str
    micro_batches: int
    stages: tuple[StageSchedule, ...]
    seconds: float | None
    idle: float
    summary: str


def schedule_of(found: JobParallelism) -> ScheduleDrawing | None:
    """Return the drawing of the plan in force; None without one.

    Times are those of the profile. Without a profile, all stages count as equal.
    """
    from scheduling.core.grids.model import Schedule  # noqa: PLC0415  brings NumPy
    from scheduling.core.grids.pipeline import Pass, Pipeline, replay  # noqa: PLC0415

    plan = found.in_force
    if plan is None:
        return None
    count, micro_batches = len(plan.plan["stages"]), int(plan.plan["micro_batches"])
    running = next((grid for grid in found.grids if grid.is_running), None)
    known = running.stage_seconds if running is not None else ()
    is_known = len(known) == count
    times = known if is_known else ((1.0, BACKWARD, 0.0, 0.0),) * count
    passes: list[Pass] = []
    replayed = replay(
        Schedule(plan.plan["schedule"]),
        Pipeline(
            forward=[one[0] for one in times],
            backward=[one[1] for one in times],
            transfer=[one[2] for one in times[:-1]],
            transfer_back=[one[3] for one in times[:-1]],
            micro_batches=micro_batches,
        ),
        passes,
    )
    stages = tuple(
        _stage(
            [one for one in passes if one.action.stage == number],
            replayed.seconds,
            number=number,
            times=times[number] if is_known else None,
            is_drawn=len(passes) <= MOST_PASSES,
        )
        for number in range(count)
    )
    idle = 1.0 - sum(stage.busy for stage in stages) / count
    return ScheduleDrawing(
        schedule=str(plan.plan["schedule"]),
        micro_batches=micro_batches,
        stages=stages,
        seconds=replayed.seconds if is_known else None,
        idle=max(0.0, idle),
        summary=_summary(count, micro_batches, str(plan.plan["schedule"]), max(0.0, idle)),
    )


def _stage(
    passes: "list[Pass]",
    seconds: float,
    *,
    number: int,
    times: tuple[float, ...] | None,
    is_drawn: bool,
) -> StageSchedule:
    busy = sum(one.end - one.start for one in passes)
    names = [f"{'FB'[one.action.backward]}{one.action.micro_batch + 1}" for one in passes]
    return StageSchedule(
        number=number,
        passes=tuple(_pass(one, seconds) for one in passes) if is_drawn else (),
        order=" ".join([*names[:LONGEST_ORDER], *(["…"] if len(names) > LONGEST_ORDER else [])]),
        forward=times[0] if times is not None else None,
        backward=times[1] if times is not None else None,
        busy=busy / seconds if seconds else 0.0,
    )


def _pass(one: "Pass", seconds: float) -> PassDrawing:
    start, width = (100.0 * value / seconds for value in (one.start, one.end - one.start))
    micro_batch = one.action.micro_batch + 1
    return PassDrawing(
        micro_batch=micro_batch,
        is_backward=one.action.backward,
        start=f"{start:.3f}",
        width=f"{width:.3f}",
        label=str(micro_batch) if width >= LABELLED else "",
    )


def _summary(stages: int, micro_batches: int, schedule: str, idle: float) -> str:
    return _("%(micro_batches)s pass through %(stages)s (%(schedule)s); stages wait %(idle)s.") % {
        "micro_batches": words.plural(micro_batches, "micro-batch", "micro-batches"),
        "stages": words.plural(stages, "stage", "stages"),
        "schedule": schedule,
        "idle": words.percent(idle),
    }
