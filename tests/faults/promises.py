"""What must be true when everybody has calmed down, read from rows, ledger and process table."""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.faults.workload import Accepted, Wish
from tests.support.waiting import wait_until
from tests.support.whole_portal import WholePortal

ENDED = ("succeeded", "failed", "stopped")
END_SECONDS = 300.0


@dataclass(frozen=True)
class Line:
    """One line of the ledger."""

    what: str
    run_id: str
    pid: int
    at: float
    first: str
    second: str

    @property
    def attempt(self) -> str:
        """The attempt's uid."""
        return self.run_id.partition(".")[0]


@dataclass(frozen=True)
class Figures:
    """What a scenario has done, for the report.

    Attributes:
        again: attempts after the first of a job.
    """

    jobs: int
    attempts: int
    again: int
    stopped: int
    requests: int


def read_ledger(path: Path) -> list[Line]:
    """Everything that the jobs have noted; a line that is none would be somebody else's."""
    if not path.exists():
        return []
    rows = [line.split(" ") for line in path.read_text().splitlines()]
    return [Line(row[0], row[1], int(row[2]), float(row[3]), row[4], row[5]) for row in rows]


def check_promises(
    portal: WholePortal,
    accepted: Accepted,
    ledger: Path,
    *,
    excused: frozenset[str] = frozenset(),
) -> Figures:
    """Wait until all jobs have ended, then check everything that was promised.

    Args:
        portal: the portal.
        accepted: what it has promised.
        ledger: what the jobs have noted.
        excused: classes of failure that an attempt may end with, since its node was hurt.

    Raises:
        AssertionError: with all that is wrong.
    """
    wait_for_ends(portal)
    wait_until(lambda: not portal.run_directories(), END_SECONDS, "the removal of all runs")
    wait_until(lambda: not portal.processes_of_runs(), 30, "the end of all processes on the nodes")
    wait_until(lambda: not portal.strangers(), 60, "the end of what nobody looks after")
    wrong = [*_what_is_wrong(portal, accepted, read_ledger(ledger), excused)]
    found = portal.manage("check_invariants")
    if found.returncode:
        wrong.append(found.stdout + found.stderr)
    assert not wrong, "\n".join(wrong) + "\n" + portal.logs()
    figures = _figures(portal, accepted)
    portal.note(str(figures))
    return figures


def lost_after_start(portal: WholePortal, ledger: Path) -> list[str]:
    """Attempts that failed with their node although the job had noted its start."""
    begun = {line.attempt for line in read_ledger(ledger)}
    rows = portal.rows("SELECT uid, message FROM scheduling_attempt WHERE failure_class = 'node'")
    return [f"{row['uid']}: {row['message']}" for row in rows if row["uid"] in begun]


def wait_for_ends(portal: WholePortal) -> None:
    """Wait until every accepted job has ended."""

    def open_jobs() -> list[tuple[Any, ...]]:
        rows = portal.rows("SELECT id, name, state, reason_text FROM scheduling_job")
        return [tuple(row) for row in rows if row["state"] not in ENDED]

    try:
        wait_until(lambda: not open_jobs(), END_SECONDS, "the end of all jobs")
    except AssertionError as error:
        raise AssertionError(f"{error}: {open_jobs()}\n{portal.logs()}") from None


def _what_is_wrong(
    portal: WholePortal, accepted: Accepted, ledger: Sequence[Line], excused: frozenset[str]
) -> Iterator[str]:
    yield from _lost_or_doubled(portal, accepted)
    jobs = {row["id"]: row for row in portal.rows("SELECT * FROM scheduling_job")}
    attempts = _by_job(
        portal.rows("SELECT * FROM scheduling_attempt ORDER BY job_id, number"), "job_id"
    )
    members = _by_job(
        portal.rows(
            "SELECT m.*, a.uid, a.job_id FROM scheduling_member m"
            " JOIN scheduling_attempt a ON a.id = m.attempt_id"
        ),
        "job_id",
    )
    for key, job_id in accepted.jobs.items():
        wish, job = accepted.wishes[key], jobs.get(job_id)
        if job is None:
            continue  # said already
        yield from _wrong_end(wish, job, is_stopped=job_id in accepted.stopped)
        sound = [one for one in attempts[job_id] if one["failure_class"] not in excused]
        yield from _wrong_members(wish, job, sound, members[job_id], ledger)
    yield from _started_twice(ledger)
    yield from _shared_in_time(ledger)
    yield from _leased_twice(portal)
    yield from _doubled_in_rows(portal)


def _lost_or_doubled(portal: WholePortal, accepted: Accepted) -> Iterator[str]:
    names = Counter(row["name"] for row in portal.rows("SELECT name FROM scheduling_job"))
    for key, job_id in accepted.jobs.items():
        if names[key] == 0:
            yield f"{key} was accepted as job {job_id} and is lost"
    for key in accepted.wishes:
        if names[key] > 1:
            yield f"{key} has become {names[key]} jobs"


def _wrong_end(wish: Wish, job: sqlite3.Row, *, is_stopped: bool) -> Iterator[str]:
    if is_stopped and job["state"] == "stopped":
        return
    expected = ("succeeded", 0) if wish.code == 0 else ("failed", wish.code)
    if (job["state"], job["exit_code"]) != expected:
        yield f"{wish.key} is {job['state']} with {job['exit_code']}, expected {expected}"


def _wrong_members(
    wish: Wish,
    job: sqlite3.Row,
    attempts: Sequence[sqlite3.Row],
    members: Sequence[sqlite3.Row],
    ledger: Sequence[Line],
) -> Iterator[str]:
    """Attempts follow each other only where the job had to make room; ends are as noted."""
    for attempt in attempts:
        noted = [line for line in ledger if line.attempt == attempt["uid"]]
        what = f"{wish.key}, attempt {attempt['number']}"
        mine = [one for one in members if one["uid"] == attempt["uid"]]
        made_room = any(one["stop_cause"] == "preempt" for one in mine)
        if attempt is not attempts[-1] and not made_room:
            yield f"{what} was {attempt['outcome']} ({attempt['message']}) and was tried again"
        if attempt["failure_class"] not in ("", "user"):
            yield f"{what} failed by {attempt['failure_class']}: {attempt['message']}"
        codes = {line.run_id: int(line.first) for line in noted if line.what == "end"}
        for member in mine:
            run_id = f"{member['uid']}.{member['role']}.{member['rank']}"
            told = codes.get(run_id)
            if told is not None and member["exit_code"] != told:
                yield f"{what}: {run_id} ended with {told}, the row says {member['exit_code']}"
            is_whole = attempt is attempts[-1] and job["state"] in ("succeeded", "failed")
            if is_whole and told is None and member["stop_asked_at"] is None:
                yield f"{what}: {run_id} has noted no end"


def _started_twice(ledger: Sequence[Line]) -> Iterator[str]:
    for what in ("start", "end"):
        counts = Counter(line.run_id for line in ledger if line.what == what)
        for run_id, count in counts.items():
            if count > 1:
                yield f"{run_id} has noted {count} times: {what}"


def _shared_in_time(ledger: Sequence[Line]) -> Iterator[str]:
    """No two processes on one device at one instant, by what the processes say themselves."""
    ends = {line.run_id: line.at for line in ledger if line.what == "end"}
    spans = defaultdict(list)
    for line in ledger:
        if line.what == "start":
            for device in line.second.split(","):
                # One that was killed has noted no end: then only its start counts.
                until = ends.get(line.run_id, line.at)
                spans[line.first, device].append((line.at, until, line.run_id))
    yield from _overlaps(spans)


def _leased_twice(portal: WholePortal) -> Iterator[str]:
    rows = portal.rows(
        "SELECT device_id, kind, slot, attempt_id, taken_at, released_at FROM scheduling_lease"
    )
    spans = defaultdict(list)
    for row in rows:
        if row["released_at"] is None:
            yield f"device {row['device_id']} is leased to attempt {row['attempt_id']} for ever"
            continue
        place = (row["device_id"], row["kind"], row["slot"])
        spans[place].append((row["taken_at"], row["released_at"], row["attempt_id"]))
    yield from _overlaps(spans)


def _doubled_in_rows(portal: WholePortal) -> Iterator[str]:
    """A member that has run was running once, and its job's events tell of it once."""
    rows = portal.rows(
        "SELECT job_id, attempt, count(*) AS n FROM scheduling_jobevent"
        " WHERE kind = 'all-running' GROUP BY job_id, attempt HAVING count(*) > 1"
    )
    for row in rows:
        yield f"job {row['job_id']} was running {row['n']} times in attempt {row['attempt']}"


def _overlaps(spans: Mapping[Any, list[tuple[Any, Any, Any]]]) -> Iterator[str]:
    for place, found in spans.items():
        found.sort()
        for before, after in pairwise(found):
            if after[0] < before[1]:
                yield f"device {place} was used by {before} and {after} at once"


def _by_job(rows: Iterable[Any], column: str) -> dict[int, list[Any]]:
    grouped = defaultdict(list)
    for row in rows:
        grouped[row[column]].append(row)
    return grouped


def _figures(portal: WholePortal, accepted: Accepted) -> Figures:
    ids = set(accepted.jobs.values())
    attempts = [
        row
        for row in portal.rows("SELECT job_id, number FROM scheduling_attempt")
        if row["job_id"] in ids
    ]
    states = [
        row["state"]
        for row in portal.rows("SELECT id, state FROM scheduling_job")
        if row["id"] in ids
    ]
    return Figures(
        jobs=len(ids),
        attempts=len(attempts),
        again=sum(row["number"] > 1 for row in attempts),
        stopped=states.count("stopped"),
        requests=accepted.tries,
    )
