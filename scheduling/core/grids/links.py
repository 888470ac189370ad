"""Times of messages over links, interpolated from measured link tables."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from scheduling.core.grids.curves import interpolated_from_zero
from scheduling.core.grids.model import GridInputError

SEND: Final = "send"
ALL_REDUCE: Final = "all_reduce"
ALL_GATHER: Final = "all_gather"
REDUCE_SCATTER: Final = "reduce_scatter"


class LinkPoint(NamedTuple):
    """One measurement: seconds of a primitive in a group of processes, by bytes."""

    primitive: str
    group: int
    size: int
    seconds: float


class UnmeasuredLinkError(GridInputError):
    """A plan needs a link, a primitive or a group that no table contains."""


@dataclass(frozen=True, slots=True)
class LinkTable:
    """Measured times of the messages over links of one class.

    Attributes:
        points: the measurements, in any order. Times are interpolated linearly over bytes, and on
            logarithmic scales below the smallest size (offline tables of Crius, EuroSys '26).
    """

    points: tuple[LinkPoint, ...]
    _curves: Mapping[tuple[str, int], tuple[Sequence[float], Sequence[float]]] = field(
        init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        """Sort the points into one curve for each primitive and group.

        Raises:
            GridError: a size is not positive, a time is negative, or a size occurs twice.
        """
        object.__setattr__(self, "_curves", _curves(self.points))

    def seconds(self, primitive: str, group: int, size: float) -> float:
        """Return the time of one message.

        Args:
            primitive: ``send``, ``all_reduce``, ``all_gather``, ``reduce_scatter`` or
                ``all_to_all``.
            group: number of processes that take part.
            size: bytes of the whole message: input of a send, an all-reduce, a reduce-scatter or
                an all-to-all in one process, output of an all-gather.

        Raises:
            UnmeasuredLinkError: the table has no measurement of the primitive in such a group.
        """
        curve = self._curves.get((primitive, group))
        if curve is None:
            raise UnmeasuredLinkError(
                f"{primitive} in a group of {group} was not measured.",
                field="points",
                value=group,
                remedy="Measure the links with groups of this size.",
            )
        return interpolated_from_zero(size, *curve)


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Link classes of the devices of one type, and their tables.

    Devices of a job are numbered in the order of its placement; a block of ``span`` devices that
    begins at a multiple of ``span`` is one cell of that level.

    Attributes:
        spans: name of the class and devices of its cells, from the narrowest class to the widest.
            The widest class contains everything beyond.
        tables: measured table of each class.
    """

    spans: tuple[tuple[str, int], ...]
    tables: Mapping[str, LinkTable]

    def __post_init__(self) -> None:
        """Reject classes that are not ordered from the narrowest to the widest."""
        sizes = [span for _, span in self.spans]
        if not sizes or min(sizes) < 1 or sizes != sorted(set(sizes)):
            raise GridInputError(
                f"{self.spans} are not classes of growing cells.",
                field="spans",
                value=self.spans,
                remedy="Name the classes from the narrowest to the widest, with their devices.",
            )

    def seconds(
        self, primitive: str, first: int, last: int, size: float, *, group: int = 2
    ) -> float:
        """Return the time of one message over the narrowest class that joins two devices.

        Args:
            primitive: as for `LinkTable.seconds`.
            first: smallest number of the devices that take part.
            last: greatest number of them.
            size: as for `LinkTable.seconds`.
            group: number of processes that take part.

        Raises:
            UnmeasuredLinkError: the class has no table, or the table no such measurement.
        """
        name = self.class_of(first, last)
        table = self.tables.get(name)
        if table is None:
            raise UnmeasuredLinkError(
                f"links of class {name} were not measured.",
                field="tables",
                value=name,
                remedy="Measure the links of this class.",
            )
        return table.seconds(primitive, group, size)

    def is_within(self, first: int, last: int, widest: str) -> bool:
        """Whether two devices are joined by the class ``widest`` or a narrower one.

        Raises:
            GridError: ``widest`` is not a class of these links.
        """
        names = [name for name, _ in self.spans]
        if widest not in names:
            raise GridInputError(
                f"{widest} is not a link class of this device type.",
                field="tensor_within",
                value=widest,
                remedy=f"Use {', '.join(names)}.",
            )
        return names.index(self.class_of(first, last)) <= names.index(widest)

    def class_of(self, first: int, last: int) -> str:
        """Return the narrowest class with a cell that contains both devices."""
        for name, span in self.spans:
            if first // span == last // span:
                return name
        return self.spans[-1][0]


def _curves(
    points: Iterable[LinkPoint],
) -> dict[tuple[str, int], tuple[Sequence[float], Sequence[float]]]:
    by_group: dict[tuple[str, int], dict[int, float]] = defaultdict(dict)
    for point in points:
        curve = by_group[point.primitive, point.group]
        if point.size <= 0 or not 0 <= point.seconds < float("inf") or point.size in curve:
            raise GridInputError(
                f"{tuple(point)} is not a valid measurement.",
                field="points",
                value=tuple(point),
                remedy="Use each size once, with positive bytes and seconds from 0.",
            )
        curve[point.size] = point.seconds
    return {
        key: (sorted(curve), [curve[size] for size in sorted(curve)])
        for key, curve in by_group.items()
    }
