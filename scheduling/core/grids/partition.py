"""Stage partition: the layers and the number of devices of each pipeline stage.

Crius (EuroSys '26, figure 7) cuts at the smallest transfers and rounds each stage's share of the
work to a power of two, which need not add up to the devices. Its published code enumerates
partitions and takes the one whose shares are nearest to powers of two. This module finds the exact
optimum by dynamic programming.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import frexp

import numpy as np
from numpy.typing import NDArray

from scheduling.core.grids.model import GridInputError, powers_of_two

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Layers and devices of each stage.

    Attributes:
        ends: for each stage, the index after its last layer; the last one is the number of layers.
        devices: devices of each stage, powers of two.
        bottleneck: work per device of the slowest stage, in the unit of the work.
        transfer: sum of the transfers between stages, in the unit of the transfers.
    """

    ends: tuple[int, ...]
    devices: tuple[int, ...]
    bottleneck: float
    transfer: float


def partition(
    work: Sequence[float],
    transfers: Sequence[float],
    *,
    stages: int,
    devices: int,
    equal_widths: bool = True,
) -> Partition:
    """Divide layers into contiguous stages, and devices into powers of two.

    The result has the smallest work per device of the slowest stage; among these,
    the smallest sum of transfers between stages, then the lexicographically smallest ends, then
    the fewest devices.

    Args:
        work: work of each layer, for example in FLOPs.
        transfers: transfer after each layer but the last, for example in bytes per micro-batch.
        stages: number of stages, at most the number of layers.
        devices: number of devices of all stages.
        equal_widths: whether all stages have ``devices / stages`` devices.

    Raises:
        GridError: an input is invalid, or the devices cannot be divided in this way.
    """
    _check(work, transfers, stages)
    widths = [devices // stages] if equal_widths else list(powers_of_two(devices))
    if not _divides(devices, stages, equal_widths=equal_widths):
        raise GridInputError(
            f"{devices} devices cannot be divided into {stages} powers of two.",
            field="devices",
            value=devices,
            remedy="Use powers of two for devices and stages, and at most one stage per device.",
        )
    ends, parts = _Table(work, transfers, stages, devices, widths).best()
    loads = [sum(work[first:end]) for first, end in pairwise((0, *ends))]
    return Partition(
        ends=ends,
        devices=parts,
        bottleneck=max(load / part for load, part in zip(loads, parts, strict=True)),
        transfer=sum(transfers[end - 1] for end in ends[:-1]),
    )


class _Table:
    """Dynamic program over the layers done, the stages done and the devices left.

    The arrays have the axes first layer, end and, if widths differ, devices left.
    """

    def __init__(
        self,
        work: Sequence[float],
        transfers: Sequence[float],
        stages: int,
        devices: int,
        widths: Sequence[int],
    ) -> None:
        done = np.concatenate([[0.0], np.cumsum(_rounded(work))])
        cost = done[None, :] - done[:, None]
        layers = len(work)
        cost[np.tril_indices(layers + 1)] = np.inf  # a stage has at least one layer
        # Devices are counted in units of the smallest width: one unit per stage if all are equal.
        unit = widths[0]
        self._widths = [width // unit for width in widths]
        self._unit = unit
        self._costs = [cost / width for width in widths]
        self._after = np.concatenate([[0.0], _rounded(transfers), [0.0]])
        self._stages = stages
        self._units = devices // unit

    def best(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the ends and the devices of the stages of the best partition."""
        least = self._tails(np.inf, np.maximum)[-1]
        bottleneck = float(least[0, self._units])
        tails = self._tails(bottleneck, np.add)
        first, ends = 0, []
        reachable = {self._units}
        for left in range(self._stages, 1, -1):
            here, later = tails[left - 1], tails[left - 2]
            first, reachable = self._first_end(first, reachable, here, later, bottleneck)
            ends.append(first)
        ends.append(len(self._after) - 1)
        return tuple(ends), self._least_devices(ends, bottleneck)

    def _tails(self, bottleneck: float, join: np.ufunc) -> list[Floats]:
        """Least value of the last 1, 2 ... stages, by their first layer and the units left."""
        tails = [self._last_stage(bottleneck, join)]
        for left in range(2, self._stages + 1):
            tails.append(self._stage_before(tails[-1], left, bottleneck, join))
        return tails

    def _last_stage(self, bottleneck: float, join: np.ufunc) -> Floats:
        """Values of the last stage by its first layer and the units left, which it uses all."""
        values = np.full((len(self._after), self._units + 1), np.inf)
        for width, cost in zip(self._widths, self._costs, strict=True):
            if width <= self._units:
                of_stage = cost[:, -1]
                least = 0.0 if join is np.add else of_stage
                values[:, width] = np.where(of_stage <= bottleneck, least, np.inf)
        return values

    def _stage_before(self, later: Floats, left: int, bottleneck: float, join: np.ufunc) -> Floats:
        """Values with one more stage in front: join its own value with that of later stages."""
        values = np.full_like(later, np.inf)
        for width, cost in zip(self._widths, self._costs, strict=True):
            most = self._units - width
            if most < left - 1:
                continue
            own = cost if join is np.maximum else np.where(cost <= bottleneck, self._after, np.inf)
            rest = later[None, :, left - 1 : most + 1]
            tail = join(own[:, :, None], rest).min(axis=1)
            columns = values[:, left - 1 + width : self._units + 1]
            np.minimum(columns, tail, out=columns)
        return values

    def _first_end(
        self, first: int, reachable: set[int], here: Floats, later: Floats, bottleneck: float
    ) -> tuple[int, set[int]]:
        """Return the least end of the stage that begins at ``first``, and the units left then."""
        found: dict[int, set[int]] = {}
        for units in reachable:
            for width, cost in zip(self._widths, self._costs, strict=True):
                if width > units:
                    continue
                total = np.where(cost[first] <= bottleneck, self._after, np.inf)
                total = total + later[:, units - width]
                for end in np.flatnonzero(total == here[first, units])[:1]:
                    found.setdefault(int(end), set()).add(units - width)
        end = min(found)
        return end, found[end]

    def _least_devices(self, ends: Sequence[int], bottleneck: float) -> tuple[int, ...]:
        """Return the lexicographically least devices of stages with these ends."""
        firsts = [0, *ends[:-1]]
        fitting = [
            [
                w
                for w, cost in zip(self._widths, self._costs, strict=True)
                if cost[f, e] <= bottleneck
            ]
            for f, e in zip(firsts, ends, strict=True)
        ]
        reachable = [{0}]  # units that the last stages can use exactly, from the last to the first
        for widths in reversed(fitting):
            reachable.append({w + rest for w in widths for rest in reachable[-1]})
        left, devices = self._units, []
        for widths, rest in zip(fitting, reachable[-2::-1], strict=True):
            width = min(w for w in widths if left - w in rest)
            devices.append(width * self._unit)
            left -= width
        return tuple(devices)


def _rounded(values: Sequence[float]) -> Floats:
    """Round to multiples of one power of two, so that sums are exact and ties are recognised."""
    numbers = np.asarray(values, dtype=np.float64)
    total = float(numbers.sum())
    if total < 1e-200:
        return numbers
    unit = 2.0 ** (frexp(total)[1] - 50)
    rounded: Floats = np.round(numbers / unit) * unit
    return rounded


def _check(work: Sequence[float], transfers: Sequence[float], stages: int) -> None:
    if len(transfers) != len(work) - 1:
        raise GridInputError(
            f"{len(transfers)} transfers do not fit {len(work)} layers.",
            field="transfers",
            value=len(transfers),
            remedy="Use one transfer less than layers.",
        )
    if not 1 <= stages <= len(work):
        raise GridInputError(
            f"{len(work)} layers cannot be divided into {stages} stages.",
            field="stages",
            value=stages,
            remedy=f"Use 1 to {len(work)} stages.",
        )
    for field, values in (("work", work), ("transfers", transfers)):
        numbers = np.asarray(values, dtype=np.float64)
        if not np.isfinite(numbers).all() or (numbers < 0).any():
            raise GridInputError(
                "a value is negative or not finite.",
                field=field,
                remedy="Use numbers from 0.",
            )


def _divides(devices: int, stages: int, *, equal_widths: bool) -> bool:
    """Whether the devices are a sum of as many powers of two as there are stages."""
    if equal_widths:
        width, rest = divmod(devices, stages)
        return rest == 0 and width > 0 and width & (width - 1) == 0
    return devices.bit_count() <= stages <= devices
