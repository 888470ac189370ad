"""The order in which ``squeue --sort`` lists jobs."""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from tessera.cli.exits import UsageError
from tessera.cli.slurm.columns import node_count, nodes_of
from tessera.cli.slurm.words import STATES
from tessera.cli.times import moment

_KEY: Final = re.compile(r"([+-]?)([A-Za-z])")
_NEVER: Final = float("inf")

Row = Mapping[str, Any]


def _seconds(value: object) -> float:
    found = moment(value)
    return _NEVER if found is None else found.timestamp()


def _state(row: Row) -> int:
    # Those that wait first, as Slurm counts its states.
    return list(STATES).index(row["state"]) if row["state"] in STATES else len(STATES)


_KEYS: Final[Mapping[str, Callable[[Row], Any]]] = {
    "D": node_count,
    "N": nodes_of,
    "P": lambda row: str(row["virtual_cluster"]),
    "S": lambda row: _seconds(row.get("started_at") or row.get("expected_start")),
    "V": lambda row: _seconds(row["submitted_at"]),
    "a": lambda row: str(row.get("tenant") or ""),
    "e": lambda row: _seconds(row.get("finished_at")),
    "i": lambda row: int(row["id"]),
    "j": lambda row: str(row["name"]),
    "l": lambda row: _NEVER if row.get("max_duration") is None else row["max_duration"],
    "p": lambda row: int(row.get("priority") or 0),
    "t": _state,
    "u": lambda row: str(row["user"]),
}
_SAME: Final = {"A": "i", "Q": "p", "T": "t"}


def joined(arguments: Sequence[str]) -> list[str]:
    """Arguments in which keys that begin with ``-`` are no options: ``-S -p`` in one word."""
    found: list[str] = []
    for word in arguments:
        if found and found[-1] in {"-S", "--sort"}:
            found[-1] = f"--sort={word}"
        else:
            found.append(word)
    return found


def sort_keys(text: str) -> tuple[tuple[str, bool], ...]:
    """Letters to sort by, each with whether it goes downwards, of ``P,-p,i``; also ``M``.

    Raises:
        UsageError: a letter is none that is sorted by.
    """
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _KEY.fullmatch(part)
        letter = _SAME.get(match[2], match[2]) if match else ""
        if match is None or letter not in {*_KEYS, "M"}:
            known = ",".join(sorted({*_KEYS, *_SAME, "M"}))
            raise UsageError(f"unknown sort key {part[:40]}; use one of {known}")
        found.append((letter, match[1] == "-"))
    return tuple(found)


def in_order(
    rows: Sequence[dict[str, Any]], order: Sequence[tuple[str, bool]], now: datetime
) -> list[dict[str, Any]]:
    """Rows by the first key, those that are alike by the next; as they came without keys."""

    def ran(row: Row) -> float:
        if row.get("started_at") is None:
            return 0.0
        ended = moment(row.get("finished_at")) or now
        return ended.timestamp() - _seconds(row["started_at"])

    found = list(rows)
    for letter, downwards in reversed(order):
        found.sort(key=_KEYS.get(letter, ran), reverse=downwards)
    return found
