"""Tables whose columns are given as Slurm gives them: ``%.18i %.9P %t``."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tessera.cli.exits import UsageError

_FIELD: Final = re.compile(r"%(\.)?([0-9]{1,3})?([A-Za-z])")

Column = tuple[str, Callable[[Mapping[str, Any]], str]]


def lines_of(
    layout: str,
    columns: Mapping[str, Column],
    rows: Sequence[Mapping[str, Any]],
    *,
    header: bool = True,
) -> list[str]:
    """Rows as lines.

    Args:
        layout: fields and what stands between them.
        columns: by letter, the title and how a row's text is made.
        rows: what to show.
        header: whether the titles come first.

    Raises:
        UsageError: the layout names a field that is not known.
    """
    unknown = {match[3] for match in _FIELD.finditer(layout)} - set(columns)
    if unknown:
        known = ", ".join(f"%{letter}" for letter in sorted(columns))
        raise UsageError(f"unknown field %{min(unknown)}; these are known: {known}")

    def line(row: Mapping[str, Any] | None) -> str:
        def cell(match: re.Match[str]) -> str:
            title, text_of = columns[match[3]]
            return _fit(title if row is None else text_of(row), match[2], match[1])

        return _FIELD.sub(cell, layout).rstrip()

    return [*([line(None)] if header else []), *(line(row) for row in rows)]


def _fit(text: str, width: str | None, right: str | None) -> str:
    """Control characters never reach a terminal; a width cuts and fills."""
    shown = "".join(char if char.isprintable() else "?" for char in text)
    if width is None:
        return shown
    cut = shown[: int(width)]
    return cut.rjust(int(width)) if right else cut.ljust(int(width))
