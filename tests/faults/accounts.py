"""What the jobs noted of themselves against what they are charged for, their logs and events."""

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any

from tests.faults.promises import Line
from tests.support.whole_portal import WholePortal
from workers.services import logs

SHARE, SECONDS = 0.02, 0.5
"""A device may be charged 2 % and 0.5 s more or less than its process noted."""
LATE = 1.0
MARK = "[tessera] the log "
NUMBERED = re.compile(r"line (\d+)")


@dataclass
class Account:
    """Sums over all attempts.

    Attributes:
        ledger, charged: device-seconds.
        most, least: largest and smallest difference of an attempt, in seconds of one device.
        late: attempts whose end was observed more than ``LATE`` after it. Only these show a wrong
            time of a node: it is limited to the observation.
        lines: of logs that were compared.
        gaps: lines in logs that report missing output.
        lost: lines of jobs that are missing at such gaps.
    """

    attempts: int = 0
    ledger: float = 0.0
    charged: float = 0.0
    most: float = 0.0
    least: float = 0.0
    late: int = 0
    logs: int = 0
    lines: int = 0
    gaps: int = 0
    lost: int = 0
    events: int = 0
    wrong: list[str] = field(default_factory=list)


def compare(portal: WholePortal, ledger: Sequence[Line]) -> Account:
    """Compare usage, logs and events of a portal whose jobs have all ended."""
    runs: dict[str, list[Line]] = defaultdict(list)
    for line in ledger:
        runs[line.run_id].append(line)
    account = Account()
    account.wrong += _usage(portal, runs, account)
    account.wrong += _logs(portal, runs, account)
    account.wrong += _events(portal, account)
    return account


def _usage(portal: WholePortal, runs: dict[str, list[Line]], account: Account) -> Iterator[str]:
    attempts: dict[str, list[tuple[int, float, float]]] = defaultdict(list)
    delays: dict[str, float] = {}
    for row in _members(portal):
        noted = runs.get(_run_id(row))
        held = _devices(row)
        if noted is not None and held and row["exited_at"] is not None:
            seconds = noted[-1].at - noted[0].at
            attempts[row["uid"]].append((held, seconds, _charged(row)))
            delays[row["uid"]] = min(_delay(row), delays.get(row["uid"], math.inf))
    for uid, members in attempts.items():
        devices = sum(held for held, _, _ in members)
        true = sum(held * seconds for held, seconds, _ in members)
        charged = sum(held * seconds for held, _, seconds in members)
        account.attempts += 1
        account.late += delays[uid] > LATE
        account.ledger += true
        account.charged += charged
        off = (charged - true) / devices
        account.most, account.least = max(account.most, off), min(account.least, off)
        if abs(off) > SECONDS + SHARE * true / devices:
            what = f"attempt {uid} ran {true / devices:.2f} s and is charged {off:+.2f} s"
            yield f"{what} ({_story(portal, uid, runs)})"


def _story(portal: WholePortal, uid: str, runs: dict[str, list[Line]]) -> str:
    """What happened to an attempt, with the seconds of the notes."""
    said = []
    for row in _members(portal):
        noted = runs.get(_run_id(row))
        if row["uid"] == uid and noted:
            begun, ended = noted[0].at - portal.began, noted[-1].at - portal.began
            said.append(
                f"{row['role']}.{row['rank']} on {noted[0].first} noted {noted[0].what} at"
                f" {begun:.2f} and {noted[-1].what} at {ended:.2f}; charged from"
                f" {row['started_at']} to {row['exited_at']}: {row['outcome']}, {row['message']}"
            )
    return "; ".join(said)


def _logs(portal: WholePortal, runs: dict[str, list[Line]], account: Account) -> Iterator[str]:
    for row in _members(portal):
        noted = runs.get(_run_id(row), [])
        printed = {int(line.first) for line in noted if line.what == "alive"}
        if not printed:
            continue
        path = logs.relative_path(row["job_id"], row["number"], row["role"], row["rank"])
        text = portal.storage.logs.read(path, offset=0, limit=1 << 30).data
        found = read_log(text.decode(), len(printed))
        account.logs += 1
        account.lines += len(found.numbers)
        account.gaps += found.marks
        account.lost += len(found.lost)
        missing = sorted(printed - {*found.numbers} - found.lost)
        if missing:
            where = f"{noted[0].first}, run {_run_id(row)} ({row['message']})"
            yield f"{path}: lines {missing} of {len(printed)} are missing on {where}"
        yield from (f"{path}: {wrong}" for wrong in found.wrong)
        if len(found.numbers) > len(printed) + 1:
            yield f"{path}: {len(found.numbers)} lines, at most {len(printed) + 1} were printed"


@dataclass
class FoundLog:
    """What a log holds.

    Attributes:
        numbers: of the lines of the job.
        marks: lines that report missing output.
        lost: numbers that are missing where such a line is.
        wrong: lines that are not in order.
    """

    numbers: list[int] = field(default_factory=list)
    marks: int = 0
    lost: set[int] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)


def read_log(text: str, count: int) -> FoundLog:
    """Read the log of a proving job.

    A line that a gap cuts short is not counted, and of the lines behind the last gap at least
    ``count`` were printed.
    """
    found = FoundLog()
    lines = [line for line in text.splitlines() if line]
    following, is_after_mark = 0, False
    for line, after in zip(lines, [*lines[1:], ""], strict=False):
        is_mark = line.startswith(MARK)
        found.marks += is_mark
        number = NUMBERED.fullmatch(line)
        if number is not None and not after.startswith(MARK):
            following, is_after_mark = _take(found, int(number[1]), following, is_after_mark)
        elif number is not None and int(number[1]) == following:
            found.numbers.append(following)
            following += 1
        is_after_mark |= is_mark
    if is_after_mark:
        found.lost |= {*range(following, count)}
    return found


def _take(found: FoundLog, number: int, following: int, is_after_mark: bool) -> tuple[int, bool]:
    if number > following and is_after_mark:
        found.lost |= {*range(following, number)}
    elif number != following:
        found.wrong.append(f"line {number} comes where line {following} is expected")
    found.numbers.append(number)
    return number + 1, False


def _events(portal: WholePortal, account: Account) -> Iterator[str]:
    rows = portal.rows("SELECT job_id, kind, at FROM scheduling_jobevent ORDER BY job_id, id")
    account.events = len(rows)
    for before, after in pairwise(rows):
        if before["job_id"] == after["job_id"] and _instant(after) < _instant(before):
            yield f"job {after['job_id']}: {after['kind']} is dated before {before['kind']}"


def _members(portal: WholePortal) -> list[Any]:
    return portal.rows(
        "SELECT m.*, a.uid, a.number, a.job_id, a.outcome,"
        " (SELECT max(l.released_at) FROM scheduling_lease l WHERE l.member_id = m.id) observed_at"
        " FROM scheduling_member m JOIN scheduling_attempt a ON a.id = m.attempt_id ORDER BY m.id"
    )


def _run_id(row: Any) -> str:
    return f"{row['uid']}.{row['role']}.{row['rank']}"


def _charged(row: Any) -> float:
    if row["started_at"] is None:
        return 0.0
    return (_instant(row, "exited_at") - _instant(row, "started_at")).total_seconds()


def _delay(row: Any) -> float:
    """Seconds from the end of a member until it was observed; 0 if its devices are still held."""
    if row["observed_at"] is None:
        return 0.0
    return (_instant(row, "observed_at") - _instant(row, "exited_at")).total_seconds()


def _devices(row: Any) -> int:
    """How many devices a member holds; SQLite returns JSON as text."""
    found = row["devices"]
    return len(json.loads(found) if isinstance(found, str) else found)


def _instant(row: Any, name: str = "at") -> datetime:
    """A column with a time, which SQLite returns as text."""
    found = row[name]
    return datetime.fromisoformat(found) if isinstance(found, str) else found
