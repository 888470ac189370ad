"""Tables of comma-separated values, read with every fault named by its line."""

import csv
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from scheduling.core.simulator.errors import TraceError


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table, by column."""

    source: str
    line: int
    cells: Mapping[str, str]

    def text(self, column: str) -> str:
        """Return the text of a column, which must not be empty."""
        value = self.cells.get(column, "").strip()
        if not value:
            raise TraceError(self.source, self.line, f"{column} is empty")
        return value

    def number(
        self, column: str, *, minimum: float = -math.inf, maximum: float = math.inf
    ) -> float:
        """A finite number of at least ``minimum`` and at most ``maximum``."""
        value = self.text(column)
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise TraceError(self.source, self.line, f"{column} is {value[:40]!r}; use a number")
        if number < minimum:
            raise TraceError(
                self.source, self.line, f"{column} is {value}; use at least {minimum:g}"
            )
        if number > maximum:
            raise TraceError(
                self.source, self.line, f"{column} is {value[:40]}; use at most {maximum:g}"
            )
        return number

    def whole(self, column: str, *, minimum: int, maximum: int = 10**12) -> int:
        """A whole number of at least ``minimum`` and at most ``maximum``."""
        number = self.number(column, minimum=minimum, maximum=maximum)
        if number != int(number):
            value = self.text(column)
            raise TraceError(self.source, self.line, f"{column} is {value}; use a whole number")
        return int(number)

    def has(self, column: str) -> bool:
        """Whether a column is not empty."""
        return bool(self.cells.get(column, "").strip())

    def fault(self, message: str) -> TraceError:
        """An error that names this line."""
        return TraceError(self.source, self.line, message)


def read_rows(
    text: str,
    source: str,
    *,
    required: Collection[str],
    optional: Collection[str] | None = None,
) -> Iterator[Row]:
    """The lines of a table with a header.

    Args:
        text: the whole file.
        source: its name, for errors.
        required: columns that must be there.
        optional: columns that may be there besides; None: any.

    Raises:
        TraceError: a column is missing, unknown or named twice, or a line has too few or too
            many cells.
    """
    reader = csv.reader(text.splitlines(), strict=True)
    try:
        header = _header(next(reader, []), source, required, optional)
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(header):
                raise TraceError(
                    source, reader.line_num, f"has {len(cells)} cells; use {len(header)}"
                )
            yield Row(source, reader.line_num, dict(zip(header, cells, strict=True)))
    except csv.Error as error:
        raise TraceError(source, reader.line_num, f"is not a line of a table ({error})") from error


def _header(
    cells: list[str], source: str, required: Collection[str], optional: Collection[str] | None
) -> list[str]:
    header = [cell.strip().lstrip("\ufeff") for cell in cells]
    missing = [column for column in required if column not in header]
    if missing:
        raise TraceError(source, 1, f"has no column {', '.join(missing)}")
    twice = sorted({column for column in header if header.count(column) > 1})
    if twice:
        raise TraceError(source, 1, f"names the column {', '.join(twice)} twice")
    if optional is not None:
        unknown = [column for column in header if column not in {*required, *optional}]
        if unknown:
            known = ", ".join([*required, *optional])
            raise TraceError(
                source, 1, f"has the unknown column {', '.join(unknown)}; it may have {known}"
            )
    return header
