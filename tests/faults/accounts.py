"""What the jobs noted of themselves against what they are charged for, their logs and events."""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any

from tests.faults.promises import Line
from tests.support.whole_portal import WholePortal
from workers.services import log_files

SHARE, SECONDS = 0.02, 0.5
"""A device may be charged 2 % and 0.5 s more or less than its process noted."""


@dataclass
class Account:
    """Sums over all attempts.

    Attributes:
        ledger, charged: device-seconds.
        worst: largest difference of one attempt, in seconds of one device.
        lines: of logs that were compared.
    """

    attempts: int = 0
    ledger: float = 0.0
    charged: float = 0.0
    worst: float = 0.0
    logs: int = 0
    lines: int = 0
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
    for row in _members(portal):
        noted = runs.get(_run_id(row))
        held = _devices(row)
        if noted is not None and held:
            seconds = noted[-1].at - noted[0].at
            attempts[row["uid"]].append((held, seconds, _charged(row)))
    for uid, members in attempts.items():
        devices = sum(held for held, _, _ in members)
        true = sum(held * seconds for held, seconds, _ in members)
        charged = sum(held * seconds for held, _, seconds in members)
        account.attempts += 1
        account.ledger += true
        account.charged += charged
        off = (charged - true) / devices
        account.worst = max(account.worst, abs(off), key=abs)
        if abs(off) > SECONDS + SHARE * true / devices:
            yield f"attempt {uid} ran {true / devices:.2f} s and is charged {off:+.2f} s"


def _logs(portal: WholePortal, runs: dict[str, list[Line]], account: Account) -> Iterator[str]:
    for row in _members(portal):
        noted = [line for line in runs.get(_run_id(row), []) if line.what == "alive"]
        if not noted:
            continue
        path = log_files.relative_path(row["job_id"], row["number"], row["role"], row["rank"])
        _, text = log_files.read(portal.data / "logs" / path, offset=0, limit=1 << 30)
        found = [line for line in text.decode().splitlines() if line.startswith("line ")]
        account.logs += 1
        account.lines += len(found)
        if found[: len(noted)] != [f"line {number}" for number in range(len(noted))]:
            yield f"{path}: {len(found)} lines, at least {len(noted)} were printed"
        if len(found) > len(noted) + 1:
            yield f"{path}: {len(found)} lines, at most {len(noted) + 1} were printed"


def _events(portal: WholePortal, account: Account) -> Iterator[str]:
    rows = portal.rows("SELECT job_id, kind, at FROM scheduling_jobevent ORDER BY job_id, id")
    account.events = len(rows)
    for before, after in pairwise(rows):
        if before["job_id"] == after["job_id"] and _instant(after) < _instant(before):
            yield f"job {after['job_id']}: {after['kind']} is dated before {before['kind']}"


def _members(portal: WholePortal) -> list[Any]:
    return portal.rows(
        "SELECT m.*, a.uid, a.number, a.job_id"
        " FROM scheduling_member m JOIN scheduling_attempt a ON a.id = m.attempt_id ORDER BY m.id"
    )


def _run_id(row: Any) -> str:
    return f"{row['uid']}.{row['role']}.{row['rank']}"


def _charged(row: Any) -> float:
    if row["started_at"] is None:
        return 0.0
    return (_instant(row, "exited_at") - _instant(row, "started_at")).total_seconds()


def _devices(row: Any) -> int:
    """How many devices a member holds; SQLite returns JSON as text."""
    found = row["devices"]
    return len(json.loads(found) if isinstance(found, str) else found)


def _instant(row: Any, name: str = "at") -> datetime:
    """A column with a time, which SQLite returns as text."""
    found = row[name]
    return datetime.fromisoformat(found) if isinstance(found, str) else found
