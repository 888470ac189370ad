"""Step time and memory of the grids of a job, from its profile and the link tables."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product
from math import prod
from typing import Final

from scheduling.core.grids.assembly import Choice, EdgeTimes, StageOptions, search, shortlist
from scheduling.core.grids.links import Links, UnmeasuredLinkError
from scheduling.core.grids.model import (
    Grid,
    ParallelPlan,
    PipelineStage,
    StageShape,
    profiled_shapes,
    stage_shapes,
)
from scheduling.core.grids.partition import Partition, partition
from scheduling.core.grids.profiles import Profile, UnprofiledError
from scheduling.core.grids.stages import (
    GridStage,
    GridState,
    StageOption,
    Training,
    edge_times,
    stage_option,
)
from scheduling.core.grids.tuning import Shapes, shapes_near, tune

TUNED_PLANS: Final = 64
"""Number of plans up to which tuning replays all plans near the winner, not only a shortlist."""

NEAREST: Final = tuple(GridState)

Options = list[list[StageOption]]
"""For each stage, the shapes in which it can run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GridEstimate:
    """Estimate of one grid.

    Attributes:
        grid: the grid.
        state: ``possible``, or why no plan exists.
        plan: the best plan; None unless the state is ``possible``.
        step_seconds: its step time; 0 without a plan.
        samples_per_second: its throughput; 0 without a plan.
        stage_bytes: memory of one device of each stage under the plan. If the grid is too large,
            that of the shape with the smallest memory; otherwise empty.
        explored: number of plans that were replayed.
        stage_seconds: for each stage of the plan, the seconds of a forward and a backward pass of
            one micro-batch, and of its transfers to the next stage and back (0 for the last one).
    """

    grid: Grid
    state: GridState
    plan: ParallelPlan | None = None
    step_seconds: float = 0.0
    samples_per_second: float = 0.0
    stage_bytes: tuple[float, ...] = ()
    explored: int = 0
    stage_seconds: tuple[tuple[float, float, float, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimator:
    """Estimates the grids of one job on one device type; all stages have equally many devices.

    Attributes:
        profile: measured layers of the job on this type.
        links: link tables of this type.
        training: batch, micro-batches, schedule and limits.
    """

    profile: Profile
    links: Links
    training: Training

    def estimate(self, grid: Grid) -> GridEstimate:
        """Return the best plan of a grid, with its step time and memory.

        The profiled shapes of each stage give a shortlist, which is replayed (estimator
        of Crius, EuroSys '26). Then the plans near the best one are tuned by replay (its tuner).
        """
        if grid.stages > min(self.training.micro_batches, len(self.profile.layers)):
            return GridEstimate(grid=grid, state=GridState.NOT_ALLOWED)
        try:
            return self._estimate(grid, self._stages(grid))
        except (UnprofiledError, UnmeasuredLinkError):
            return GridEstimate(grid=grid, state=GridState.NOT_PROFILED)

    def _estimate(self, grid: Grid, stages: Sequence[GridStage]) -> GridEstimate:
        options = [self._possible(stage, profiled_shapes(grid.width)) for stage in stages]
        if not all(options):
            options = [self._possible(stage, stage_shapes(grid.width)) for stage in stages]
        if not all(options):
            return self._refused(grid, stages)
        return self._tuned(grid, stages, options)

    def _stages(self, grid: Grid) -> list[GridStage]:
        samples = self.training.samples
        runs = self.profile.runs(
            0, len(self.profile.layers), StageShape(data=1, tensor=1), samples
        )
        cut = _partition(
            tuple(run.flops for run in runs),
            tuple(run.boundary_bytes for run in runs[:-1]),
            grid.stages,
            grid.devices,
        )
        ends = pairwise((0, *cut.ends))
        return [GridStage(grid=grid, index=i, first=a, last=b) for i, (a, b) in enumerate(ends)]

    def _possible(self, stage: GridStage, shapes: Sequence[StageShape]) -> list[StageOption]:
        options = (self._option(stage, shape) for shape in shapes)
        return [option for option in options if option.state is GridState.POSSIBLE]

    def _option(self, stage: GridStage, shape: StageShape) -> StageOption:
        return stage_option(
            stage, shape, profile=self.profile, links=self.links, training=self.training
        )

    def _timed(self, stages: Sequence[GridStage], options: Options) -> StageOptions:
        return StageOptions(
            stages=[[option.times for option in row] for row in options],
            edges=[
                [[edge_times(stage, a, b.shape, self.links) for b in after] for a in before]
                for stage, (before, after) in zip(stages, pairwise(options), strict=False)
            ],
            micro_batches=self.training.micro_batches,
            schedule=self.training.schedule,
        )

    def _tuned(self, grid: Grid, stages: Sequence[GridStage], options: Options) -> GridEstimate:
        found = search(self._timed(stages, options))
        profiled = {_shapes(options, choice): s for choice, s in found.explored.items()}
        winner = _shapes(options, found.choice)
        near = [
            self._possible(stage, shapes_near(shape))
            for stage, shape in zip(stages, winner, strict=True)
        ]
        timed = self._timed(stages, near)
        choices = {_shapes(near, choice): choice for choice in _worth_replaying(timed)}
        choices[winner] = _choice(near, winner)
        tuned = tune(choices, profiled, lambda shapes: timed.step_seconds(choices[shapes]))
        chosen = [row[k] for row, k in zip(near, choices[tuned.chosen], strict=True)]
        return GridEstimate(
            grid=grid,
            state=GridState.POSSIBLE,
            plan=ParallelPlan(
                stages=tuple(
                    PipelineStage(first=stage.first, last=stage.last, shape=shape)
                    for stage, shape in zip(stages, tuned.chosen, strict=True)
                ),
                micro_batches=self.training.micro_batches,
                schedule=self.training.schedule,
            ),
            step_seconds=tuned.seconds,
            samples_per_second=self.training.batch / tuned.seconds,
            stage_bytes=tuple(option.device_bytes for option in chosen),
            explored=len({*profiled, *tuned.explored}),
            stage_seconds=self._seconds_of(stages, chosen),
        )

    def _seconds_of(
        self, stages: Sequence[GridStage], chosen: Sequence[StageOption]
    ) -> tuple[tuple[float, float, float, float], ...]:
        edges = [
            edge_times(stage, a, b.shape, self.links)
            for stage, (a, b) in zip(stages, pairwise(chosen), strict=False)
        ]
        return tuple(
            (option.times.forward_s, option.times.backward_s, edge.forward_s, edge.backward_s)
            for option, edge in zip(chosen, (*edges, EdgeTimes(0.0, 0.0)), strict=True)
        )

    def _refused(self, grid: Grid, stages: Sequence[GridStage]) -> GridEstimate:
        """Return the reason of the first stage without a shape, the one nearest to a plan."""
        shapes = stage_shapes(grid.width)
        rows = [[self._option(stage, shape) for shape in shapes] for stage in stages]
        best = [min(row, key=lambda o: (NEAREST.index(o.state), o.device_bytes)) for row in rows]
        state = next(o.state for o in best if o.state is not GridState.POSSIBLE)
        needed = [option.device_bytes for option in best]
        return GridEstimate(
            grid=grid, state=state, stage_bytes=tuple(needed) if all(needed) else ()
        )


@lru_cache(maxsize=1024)
def _partition(
    work: tuple[float, ...], transfers: tuple[float, ...], stages: int, devices: int
) -> Partition:
    return partition(work, transfers, stages=stages, devices=devices)


def _shapes(options: Options, choice: Choice) -> Shapes:
    return tuple(row[k].shape for row, k in zip(options, choice, strict=True))


def _choice(options: Options, shapes: Shapes) -> Choice:
    return tuple(
        [option.shape for option in row].index(shape)
        for row, shape in zip(options, shapes, strict=True)
    )


def _worth_replaying(options: StageOptions) -> Iterable[Choice]:
    """Return all plans if they are few, otherwise a shortlist."""
    counts = [len(row) for row in options.stages]
    if prod(counts) <= TUNED_PLANS:
        return product(*map(range, counts))
    return shortlist(options)
