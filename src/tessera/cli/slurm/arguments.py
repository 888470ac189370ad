"""Arguments of Slurm's commands: options, job IDs and sort keys.

A job ID is ``12``; tasks of an array are ``12_3`` and ``12_[0-4,7]``.
"""

import argparse
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NoReturn

from tessera.cli.exits import UsageError
from tessera.cli.output import moment
from tessera.cli.slurm.columns import node_count, nodes_of
from tessera.cli.slurm.words import ARRAY, STATES
from tessera.client import Client

MOST_TASKS: Final = 1000
_TASK: Final = "SLURM_ARRAY_TASK_ID"
_ARRAY: Final = "SLURM_ARRAY_JOB_ID"
_BETWEEN: Final = re.compile(r",(?![^\[]*\])")
_JOB: Final = re.compile(r"([0-9]{1,18})(?:_(?:([0-9]{1,9})|\[([0-9,:-]{1,2000})\]))?")
_RANGE: Final = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([1-9][0-9]{0,8}))?)?")
_KEY: Final = re.compile(r"([+-]?)([A-Za-z])")
_NEVER: Final = float("inf")

Row = Mapping[str, Any]


class Parser(argparse.ArgumentParser):
    """Parser that reports errors like the other commands; ``-h`` is not always its help."""

    def __init__(self, prog: str, summary: str, *, short_help: bool = True) -> None:
        """Add ``--help``, and ``-h`` unless Slurm's command uses it for another option."""
        super().__init__(prog=f"tessera slurm {prog}", description=summary, add_help=False)
        names = ("-h", "--help") if short_help else ("--help",)
        self.add_argument(*names, action="help", help="Show this message and exit.")

    def option(self, *names: str, summary: str, **more: Any) -> None:
        """Add an option with a value, or a flag if ``more`` configures one."""
        self.add_argument(*names, help=summary, **({"default": "", "metavar": "X"} | more))

    def flag(self, *names: str, summary: str) -> None:
        """Add an option without a value."""
        self.add_argument(*names, help=summary, action="store_true")

    def error(self, message: str) -> NoReturn:
        """Raise the error as a ``UsageError``, like the other commands."""
        raise UsageError(f"{self.prog.removeprefix('tessera slurm ')}: {message}")


def numbers_of(client: Client, words: Sequence[str]) -> list[int]:
    """Return the IDs of the given jobs, in the order of the words.

    Args:
        client: looks up the jobs of an array's tasks.
        words: the arguments, each one or several numbers separated by commas.

    Raises:
        UsageError: a word is not a job ID, or the array has no such task.
    """
    read = [_read(word) for text in words for word in _BETWEEN.split(text)]
    found: list[int] = []
    for number, tasks in read:
        found += [number] if tasks is None else _jobs_of_tasks(client, number, tasks)
    return found


def number_of(client: Client, word: str) -> int:
    """Return the ID of exactly one job; see ``numbers_of``."""
    found = numbers_of(client, [word])
    if len(found) != 1:
        raise UsageError(f"expected one job, not {len(found)}")
    return found[0]


def _read(word: str) -> tuple[int, list[int] | None]:
    """Parse a job ID and the named tasks; None if no tasks are named."""
    match = _JOB.fullmatch(word)
    if match is None:
        raise _invalid(word)
    if match[2]:
        return int(match[1]), [int(match[2])]
    return int(match[1]), _tasks(match[3], word) if match[3] else None


def _tasks(text: str, word: str) -> list[int]:
    found: dict[int, None] = {}
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise _invalid(word)
        first, last = int(match[1]), int(match[2] or match[1])
        tasks = range(first, last + 1, int(match[3] or 1))
        if not tasks or len(found) + len(tasks) > MOST_TASKS:
            raise _invalid(word)
        found |= dict.fromkeys(tasks)
    return list(found)


def _jobs_of_tasks(client: Client, array: int, tasks: Sequence[int]) -> list[int]:
    first = client.get(f"jobs/{array}/")
    env = _environment(first)
    if _TASK not in env or env.get(_ARRAY, str(array)) != str(array):
        raise UsageError(f"Job {array} is not an array")
    found = {}
    if env[_TASK].isdecimal():
        found[int(env[_TASK])] = array
    left = set(tasks) - set(found)
    for row in _of_one_name(client, array, first) if left else ():
        ending = str(row["name"]).rpartition(" ")[2]
        if not (ending.isascii() and ending.isdecimal() and int(ending) in left):
            continue
        # Other arrays may have the same name; the job contains the ID of its array.
        env = _environment(client.get(f"jobs/{row['id']}/"))
        if (env.get(_ARRAY), env.get(_TASK)) == (str(array), str(int(ending))):
            found[int(ending)] = int(row["id"])
            left.discard(int(ending))
            if not left:
                break
    if left:
        raise UsageError(f"Job {array} has no task {min(left)}")
    return [found[task] for task in tasks]


def _of_one_name(
    client: Client, array: int, first: Mapping[str, Any]
) -> Iterator[Mapping[str, Any]]:
    """Yield jobs of arrays of this name and person that are not older, newest first."""
    name = str((first.get("labels") or {}).get(ARRAY) or "")
    user = str(first["user"])
    for row in client.pages("jobs/", label=f"{ARRAY}={name}", user=user, state="live,ended"):
        if int(row["id"]) < array:
            return
        yield row


def _environment(job: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment that a batch script's job has in its specification."""
    roles = (job.get("spec") or {}).get("roles") or {}
    return {str(k): str(v) for role in roles.values() for k, v in (role.get("env") or {}).items()}


def _invalid(word: str) -> UsageError:
    return UsageError(f"Invalid job id {word[:40]}")


def _seconds(value: object) -> float:
    found = moment(value)
    return _NEVER if found is None else found.timestamp()


def _state(row: Row) -> int:
    # Waiting jobs first, in the order of Slurm's states.
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
    """Join a sort option with its keys, which may begin with ``-``: ``-S -p`` in one word."""
    found: list[str] = []
    for word in arguments:
        if found and found[-1] in {"-S", "--sort"}:
            found[-1] = f"--sort={word}"
        else:
            found.append(word)
    return found


def sort_keys(text: str) -> tuple[tuple[str, bool], ...]:
    """Parse ``P,-p,i`` into letters to sort by, each with its direction; also ``M``.

    Raises:
        UsageError: a letter is not a valid sort key.
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
    """Sort rows by the first key, then by the next; without keys, the order is unchanged."""

    def ran(row: Row) -> float:
        if row.get("started_at") is None:
            return 0.0
        ended = moment(row.get("finished_at")) or now
        return ended.timestamp() - _seconds(row["started_at"])

    found = list(rows)
    for letter, downwards in reversed(order):
        found.sort(key=_KEYS.get(letter, ran), reverse=downwards)
    return found
