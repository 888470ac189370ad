"""Output of commands: tables and times for people, JSON for programs."""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

AsJson = Annotated[bool, typer.Option("--json", help="Print the response of the API as JSON.")]
Utc = Annotated[bool, typer.Option("--utc", help="Show times in UTC, not in the local time zone.")]

LONGEST_LINE = 2000
STATE_STYLES = {
    "queued": "yellow",
    "admitted": "cyan",
    "starting": "cyan",
    "running": "green",
    "ready": "green",
    "suspect": "magenta",
    "preempting": "magenta",
    "stopping": "magenta",
    "cordoned": "magenta",
    "draining": "magenta",
    "failed": "red",
    "down": "red",
}


def out() -> Console:
    """Create the console for results; a new one each time, to follow a redirected stdout."""
    return Console(highlight=False, soft_wrap=True)


def err() -> Console:
    """Create the console for warnings on stderr, separate from the results."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print one JSON document on standard output."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    empty: str,
    folded: bool = True,
    numbers: Sequence[str] = (),
) -> None:
    """Print a table, or a sentence with the next action if there are no rows.

    Args:
        columns: heads of the columns.
        rows: cells with markup.
        empty: the sentence.
        folded: False writes each row on one line; outside a terminal it is as long as its cells.
        numbers: columns to align at the right, besides ID.
    """
    console = out()
    if not folded and not console.is_terminal:
        console.width = LONGEST_LINE
    table = table_of(columns, rows, folded=folded, numbers=numbers)
    if table.row_count:
        console.print(table)
    else:
        err().print(empty)


def table_of(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    folded: bool = True,
    numbers: Sequence[str] = (),
) -> Table:
    """Return a table as ``print_table`` prints it."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(
            column,
            justify="right" if column in {"ID", "DEV", *numbers} else "left",
            overflow="fold" if folded else "ellipsis",
            no_wrap=not folded,
        )
    for row in rows:
        table.add_row(*row)
    return table


def state_text(state: str) -> str:
    """Return a state in its colour."""
    style = STATE_STYLES.get(state)
    return f"[{style}]{escape(state)}[/]" if style else escape(state)


def say_warnings(warnings: Iterable[str]) -> None:
    """Print warnings on standard error, each on its line."""
    for warning in warnings:
        err().print(f"[yellow]warning:[/] {escape(warning)}")


def moment(value: Any) -> datetime | None:
    """Parse a time of the API; None if there is none."""
    return datetime.fromisoformat(value) if isinstance(value, str) and value else None


def shown(at: datetime, *, utc: bool) -> datetime:
    """Convert a time to UTC or to the local time zone (``TZ``, or that of the machine)."""
    return at.astimezone(UTC) if utc else at.astimezone()


def clock(value: Any, *, utc: bool = False) -> str:
    """Format a time as ``2026-03-01 11:00:00 CET``; empty if there is no time."""
    found = moment(value)
    return f"{shown(found, utc=utc):%Y-%m-%d %H:%M:%S %Z}" if found else ""
