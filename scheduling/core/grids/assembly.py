"""Assembling a plan from one shape per stage: the shortlist and the time of a step.

With K shapes for each of S stages there are K^S plans. Dynamic programming finds the best ones by
the formula of the estimator of Crius (EuroSys '26); replaying their schedules ranks them exactly.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduling.core.grids.model import GridInputError, Schedule
from scheduling.core.grids.pipeline import Pipeline, replay

REPLAYED: Final = 8
"""Number of plans of the shortlist that are replayed."""

Floats = NDArray[np.float64]
Choice = tuple[int, ...]
"""Index of the shape of each stage."""


class StageTimes(NamedTuple):
    """Times of a stage in one shape, in seconds.

    Attributes:
        forward_s: forward pass of one micro-batch, with the collectives within the stage.
        backward_s: backward pass of one micro-batch, likewise.
        exchange_s: exchange of gradients between the replicas, once a step.
        update_s: update by the optimizer, once a step.
    """

    forward_s: float
    backward_s: float
    exchange_s: float = 0.0
    update_s: float = 0.0


class EdgeTimes(NamedTuple):
    """Times between two stages in certain shapes, in seconds per micro-batch."""

    forward_s: float
    backward_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOptions:
    """Times of all shapes of all stages of a grid.

    Attributes:
        stages: for each stage, the times of each of its shapes.
        edges: for each pair of neighbours, the times between each shape of the first (outer
            index) and each of the second.
        micro_batches: number of micro-batches in a step.
        schedule: order of forward and backward passes.
    """

    stages: Sequence[Sequence[StageTimes]]
    edges: Sequence[Sequence[Sequence[EdgeTimes]]]
    micro_batches: int
    schedule: Schedule

    def __post_init__(self) -> None:
        """Reject stages without a shape, and edges that do not fit the stages."""
        shapes = [len(options) for options in self.stages]
        edges = [(len(edge), len(edge[0]) if edge else 0) for edge in self.edges]
        if 0 in shapes or not shapes or edges != list(pairwise(shapes)):
            raise GridInputError(
                f"stages with {shapes} shapes and edges of {edges} do not fit together.",
                field="edges",
                value=edges,
                remedy="Use one time for each pair of shapes of neighbouring stages.",
            )

    def formula_seconds(self, choice: Choice) -> float:
        """Return the time of a step by the formula of Crius' estimator.

        One micro-batch fills the pipeline, and the slowest stage computes the others, with all
        transfers hidden: ``sum(T_i) + (B - 1) * max(T_i - comm_i)``. Here the maximum of exchange
        and update is added.
        """
        chosen = [options[k] for options, k in zip(self.stages, choice, strict=True)]
        passes = [stage.forward_s + stage.backward_s for stage in chosen]
        edges = sum(sum(edge) for edge in self._edges_of(choice))
        once = max(stage.exchange_s + stage.update_s for stage in chosen)
        return sum(passes) + edges + (self.micro_batches - 1) * max(passes) + once

    def step_seconds(self, choice: Choice) -> float:
        """Return the time of a step by replaying its schedule.

        The exchange of gradients of a stage begins after its last backward pass. Only the part
        after the last backward pass of all stages adds to the step; the slowest update follows.
        """
        chosen = [options[k] for options, k in zip(self.stages, choice, strict=True)]
        edges = self._edges_of(choice)
        replayed = replay(
            self.schedule,
            Pipeline(
                forward=[stage.forward_s for stage in chosen],
                backward=[stage.backward_s for stage in chosen],
                transfer=[edge.forward_s for edge in edges],
                transfer_back=[edge.backward_s for edge in edges],
                micro_batches=self.micro_batches,
            ),
        )
        exchanged = max(
            finish + stage.exchange_s
            for finish, stage in zip(replayed.finishes, chosen, strict=True)
        )
        return max(replayed.seconds, exchanged) + max(stage.update_s for stage in chosen)

    def _edges_of(self, choice: Choice) -> list[EdgeTimes]:
        return [edge[a][b] for edge, (a, b) in zip(self.edges, pairwise(choice), strict=True)]


def shortlist(options: StageOptions, count: int = REPLAYED) -> list[Choice]:
    """Return up to ``count`` plans with small formula times, in ascending order.

    For each possible time of the slowest stage, a Viterbi pass over the stages finds the plans
    with the smallest sums of passes and transfers. So these are exactly the best by the formula
    of the paper. A further pass for each possible maximum of exchange and update makes the first
    plan the best one with these, too.
    """
    passes = [np.array([t.forward_s + t.backward_s for t in s]) for s in options.stages]
    onces = [np.array([t.exchange_s + t.update_s for t in s]) for s in options.stages]
    edges = [np.array([[sum(e) for e in row] for row in edge]) for edge in options.edges]
    bounds = _candidates(passes)
    found = set(_least_sums(passes, edges, bounds, count))
    for limit in _candidates(onces):
        allowed = [
            np.where(once <= limit, row, np.inf) for row, once in zip(passes, onces, strict=True)
        ]
        found.update(_least_sums(allowed, edges, bounds, 1))
    ranked = sorted(found, key=lambda choice: (options.formula_seconds(choice), choice))
    return ranked[:count]


class Search(NamedTuple):
    """Result of a search.

    Attributes:
        choice: the plan with the shortest step time.
        seconds: its step time.
        explored: step time of each plan that was replayed.
    """

    choice: Choice
    seconds: float
    explored: Mapping[Choice, float]


def search(options: StageOptions, count: int = REPLAYED) -> Search:
    """Return the best plan by replay of the shortlist."""
    explored = {choice: options.step_seconds(choice) for choice in shortlist(options, count)}
    choice = min(explored, key=lambda c: (explored[c], c))
    return Search(choice, explored[choice], explored)


def _candidates(rows: Sequence[Floats]) -> Floats:
    """Return the values that the maximum over the stages may have."""
    least = max(row.min() for row in rows)
    return np.array(sorted({v for row in rows for v in row.tolist() if v >= least}))


def _least_sums(
    passes: Sequence[Floats], edges: Sequence[Floats], bounds: Floats, count: int
) -> Iterator[Choice]:
    """Yield, for each bound of the passes, the ``count`` plans with the least sums (Viterbi)."""
    limits = bounds[:, None]
    total = np.where(passes[0] <= limits, passes[0], np.inf)[:, :, None]  # bounds, shapes, ranks
    came_from = []
    for row, edge in zip(passes[1:], edges, strict=True):
        ranks = total.shape[2]
        paths = (total[:, :, None, :] + edge[:, :, None]).swapaxes(1, 2)
        paths = paths.reshape(len(bounds), len(row), -1)
        least = paths.argsort(axis=2, kind="stable")[:, :, :count]
        came_from.append((least, ranks))
        own = np.where(row <= limits, row, np.inf)
        total = np.take_along_axis(paths, least, axis=2) + own[:, :, None]
    ranks = total.shape[2]
    flat = total.reshape(len(bounds), -1)
    least = flat.argsort(axis=1, kind="stable")[:, :count]
    feasible = np.take_along_axis(flat, least, axis=1) < np.inf
    shape, rank = np.divmod(least, ranks)
    chosen = [shape]
    every = np.arange(len(bounds))[:, None]
    for origins, ranks in reversed(came_from):
        shape, rank = np.divmod(origins[every, shape, rank], ranks)
        chosen.append(shape)
    plans = np.stack(chosen[::-1], axis=2)[feasible]
    yield from map(tuple, plans.tolist())
