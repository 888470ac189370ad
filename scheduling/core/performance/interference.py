"""What jobs lose by sharing a device: measured by pairs, guessed from utilisation before that."""

from collections import defaultdict


class Interference:
    """Mean relative rates by pair of applications and type.

    A rate is relative to having the device alone: 1 means that the other one costs nothing.
    """

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])

    def observe(
        self, first: str, other: str, device_type: str, rates: tuple[float, float]
    ) -> None:
        """Note what both made, relative to having the device alone.

        Raises:
            ValueError: a rate is negative.
        """
        if min(rates) < 0:
            raise ValueError(f"relative rates {rates} of {first} and {other} are below 0")
        for pair, (mine, theirs) in (((first, other), rates), ((other, first), rates[::-1])):
            sums = self._sums[(*pair, device_type)]
            sums[0] += 1.0
            sums[1] += mine
            sums[2] += theirs
            if first == other:
                break

    def add(self, other: "Interference") -> None:
        """Take over everything that ``other`` has seen."""
        for key, sums in other._sums.items():
            mine = self._sums[key]
            for place, value in enumerate(sums):
                mine[place] += value

    def pair(
        self,
        first: str | None,
        other: str | None,
        device_type: str,
        *,
        utils: tuple[float | None, float | None] = (None, None),
    ) -> tuple[float, float]:
        """Both relative rates: measured, or from how busy each keeps a device, or half each."""
        if first is not None and other is not None:
            count, mine, theirs = self._sums.get((first, other, device_type), (0.0, 0.0, 0.0))
            if count:
                return mine / count, theirs / count
        return guessed(*utils)


def guessed(first: float | None, other: float | None) -> tuple[float, float]:
    """What is to be expected of two jobs that keep a device busy so much of the time.

    As long as both together need no more than the device they do not disturb each other; beyond
    that each loses in proportion.
    """
    if first is None or other is None:
        return 0.5, 0.5
    part = min(1.0, 1.0 / max(first + other, 1e-9))
    return part, part
