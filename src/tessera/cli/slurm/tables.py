"""Tables whose columns are given as Slurm gives them: ``%.18i %.9P %t``, or by their names."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tessera.cli.exits import UsageError

_FIELD: Final = re.compile(r"%(\.)?([0-9]{1,3})?([A-Za-z])")
_NAMED: Final = re.compile(r"([A-Za-z_-]+)(?:[:%]([.-])?([0-9]{1,3}))?")

Column = tuple[str, Callable[[Mapping[str, Any]], str]]


@dataclass(frozen=True, slots=True)
class Cell:
    """Where a column stands in a line.

    Attributes:
        key: of the column, a letter or a name.
        width: None: as long as the text is.
        right: the text stands at the right end.
    """

    key: str
    width: int | None = None
    right: bool = False


Layout = tuple[str | Cell, ...]
"""The cells of a line, and the texts between them."""


def by_letters(text: str) -> Layout:
    """What ``-o`` takes: fields such as ``%.10i`` and what stands between them."""
    parts: list[str | Cell] = []
    end = 0
    for match in _FIELD.finditer(text):
        width = int(match[2]) if match[2] else None
        parts += [text[end : match.start()], Cell(match[3], width, bool(match[1]))]
        end = match.end()
    return (*parts, text[end:])


def by_names(
    text: str, names: Mapping[str, str], *, between: str = "", width: int | None = None
) -> Layout:
    """What ``--Format`` of squeue and ``--format`` of sacct take: ``jobid:10,state`` or ``%10``.

    Args:
        text: the names, parted by commas.
        names: keys of columns by the names that they have in small letters.
        between: stands between two fields.
        width: of a field that gives none.

    Raises:
        UsageError: a name is not known.
    """
    parts: list[str | Cell] = []
    for each in text.split(","):
        match = _NAMED.fullmatch(each.strip())
        key = names.get(match[1].lower()) if match else None
        if match is None or key is None:
            raise UsageError(f"unknown field {each[:40]}; use one of {', '.join(names)}")
        cell = Cell(key, int(match[3]) if match[3] else width, match[2] == ".")
        parts += [between, cell] if parts else [cell]
    return tuple(parts)


def keys_of(layout: Layout) -> frozenset[str]:
    """The columns that a layout names."""
    return frozenset(part.key for part in layout if isinstance(part, Cell))


def lines_of(
    layout: Layout,
    columns: Mapping[str, Column],
    rows: Sequence[Mapping[str, Any]],
    *,
    header: bool = True,
) -> list[str]:
    """Rows as lines.

    Args:
        layout: the cells and what stands between them.
        columns: by key, the title and how a row's text is made.
        rows: what to show.
        header: whether the titles come first.

    Raises:
        UsageError: the layout names a field that is not known.
    """
    unknown = keys_of(layout) - set(columns)
    if unknown:
        known = ", ".join(f"%{letter}" for letter in sorted(columns))
        raise UsageError(f"unknown field %{min(unknown)}; use one of {known}")

    def line(row: Mapping[str, Any] | None) -> str:
        def text_of(part: str | Cell) -> str:
            if isinstance(part, str):
                return part
            title, text = columns[part.key]
            return _fit(title if row is None else text(row), part)

        return "".join(map(text_of, layout)).rstrip()

    return [*([line(None)] if header else []), *(line(row) for row in rows)]


def _fit(text: str, cell: Cell) -> str:
    """Control characters never reach a terminal; a width cuts and fills."""
    shown = "".join(char if char.isprintable() else "?" for char in text)
    if cell.width is None:
        return shown
    cut = shown[: cell.width]
    return cut.rjust(cell.width) if cell.right else cut.ljust(cell.width)
