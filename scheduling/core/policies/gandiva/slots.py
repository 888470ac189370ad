"""Gang scheduling in time slots: every gang whole in one row, the rows taking turns.

The matrix is Ousterhout's (ICDCS '82): columns are devices, rows are slices of time. A gang has
the same row on all of its devices, so that all its workers run at once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedGang:
    """A job, or a pack of jobs, that runs whole.

    Attributes:
        key: of the job, or of the first job of a pack.
        n: devices.
        types: possible types, the best first.
    """

    key: int
    n: int
    types: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A gang's place: its row, and the type in it."""

    row: int
    type: str


def seat(
    gangs: Sequence[PackedGang], capacity: Mapping[str, int], before: Mapping[int, Seat]
) -> dict[int, Seat]:
    """A seat for each gang that can fit at all, in as few rows as first fit needs.

    Gangs stay in place; new ones take the first row with room. Then the gangs of the last row move
    to the others as far as they have room, and empty rows are closed.

    Args:
        gangs: in order of arrival.
        capacity: devices by type, the same in every row.
        before: previous seats.
    """
    rows: list[dict[str, int]] = []
    seats: dict[int, Seat] = {}

    def sit(gang: PackedGang, row: int, kind: str) -> bool:
        while len(rows) <= row:
            rows.append(dict(capacity))
        if rows[row].get(kind, 0) < gang.n:
            return False
        rows[row][kind] -= gang.n
        seats[gang.key] = Seat(row=row, type=kind)
        return True

    able = [gang for gang in gangs if any(capacity.get(k, 0) >= gang.n for k in gang.types)]
    for gang in able:
        old = before.get(gang.key)
        if old is not None and old.type in gang.types:
            sit(gang, old.row, old.type)
    for gang in able:
        if gang.key not in seats:
            _sit_first(gang, len(rows) + 1, sit)
    _empty_last_rows(able, seats, rows, sit)
    used = sorted({place.row for place in seats.values()})
    return {
        key: Seat(row=used.index(place.row), type=place.type)
        for key, place in sorted(seats.items())
    }


def _empty_last_rows(
    able: Sequence[PackedGang],
    seats: Mapping[int, Seat],
    rows: list[dict[str, int]],
    sit: Callable[[PackedGang, int, str], bool],
) -> None:
    """Move gangs of the last row forwards until none can; an emptied row is closed."""
    moved = True
    while moved:
        moved = False
        last = max((place.row for place in seats.values()), default=0)
        for gang in reversed(able):
            old = seats[gang.key]
            if old.row == last and _sit_first(gang, last, sit):
                rows[last][old.type] += gang.n
                moved = True


def in_turn(gangs: Sequence[PackedGang], seats: Mapping[int, Seat], row: int) -> list[PackedGang]:
    """Gangs in the order in which they run now: those of ``row``, then of the rows after it."""
    rows = max((place.row for place in seats.values()), default=0) + 1
    seated = [gang for gang in gangs if gang.key in seats]
    return sorted(seated, key=lambda gang: (seats[gang.key].row - row) % rows)


def _sit_first(gang: PackedGang, most: int, sit: Callable[[PackedGang, int, str], bool]) -> bool:
    """Sit in the first of ``most`` rows with room, on the best type that has it."""
    return any(sit(gang, row, kind) for row in range(most) for kind in gang.types)
