"""``squeue``, ``sacct``, ``scancel`` and ``scontrol show job``."""

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

import typer

from tessera.cli.exits import UsageError
from tessera.cli.output import moment
from tessera.cli.session import Session
from tessera.cli.slurm.arguments import Parser, in_order, joined, number_of, numbers_of, sort_keys
from tessera.cli.slurm.columns import (
    DETAILED,
    NAMES,
    accounting_columns,
    by_letters,
    by_names,
    job_columns,
    keys_of,
    lines_of,
    needs_details,
    node_count,
    nodes_of,
    printable,
)
from tessera.cli.slurm.documents import (
    accounted_job,
    document,
    queued_job,
    take_json,
    wants_json,
)
from tessera.cli.slurm.words import (
    ARRAY,
    STATES,
    clock,
    elapsed,
    read_moment,
    reason_of,
    span,
    state_of,
)
from tessera.client import Client

Span = tuple[datetime | None, datetime | None]
"""Start and end of a span: jobs not ended before the start and submitted before the end."""

MOST: Final = 1000
_QUEUE: Final = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
_LONG: Final = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R"
_STARTS: Final = "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %R"
_ACCOUNTING: Final = "jobid%12,jobname%10,partition%10,account%10,allocgres%7,state%10,exitcode%9"
_WIDTH: Final = re.compile(r"%[.-]?[0-9]+")
_SCONTROL: Final = """\
Usage: tessera slurm scontrol show job JOB_ID

Show one job as names and values. Other commands of scontrol are not supported: use
`tessera node` for nodes and `tessera stop` to stop jobs."""


def run_squeue(session: Session, arguments: Sequence[str]) -> None:
    """List jobs that have not ended."""
    given = _read_squeue(arguments)
    as_json = wants_json(given, columns=[given.format, given.names])
    usual = _STARTS if given.start else _LONG if given.long else _QUEUE
    layout, order = by_letters(given.format or usual), sort_keys(given.sort)
    if given.names:
        layout = by_names(given.names, NAMES, width=20)
    states = "PD" if given.start and not given.states else given.states
    nodes = {name for name in given.nodelist.split(",") if name}
    with session.client() as client:
        found = _jobs(client, given, _states(states), mine=given.me, many=True)
        rows, more = _shown("squeue", found)
        if DETAILED & keys_of(layout) and not given.jobs:
            rows = [dict(client.get(f"jobs/{row['id']}/")) for row in rows]
    if nodes:
        rows = [row for row in rows if nodes & set(nodes_of(row).split(","))]
    rows = in_order(rows, order, datetime.now(tz=UTC))
    if as_json:
        typer.echo(document("squeue", "jobs", [queued_job(row) for row in rows], more))
        return
    _echo(lines_of(layout, job_columns(), rows, header=not given.noheader))


def _read_squeue(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser("squeue", "List jobs that have not ended.", short_help=False)
    _filters(parser)
    parser.option("-n", "--name", summary="Only jobs of these names.")
    parser.flag("--me", summary="Only your own jobs.")
    parser.option("-t", "--states", summary="Slurm states, such as PD,R; all: also ended jobs.")
    parser.option("-w", "--nodelist", summary="Only jobs on these nodes.")
    parser.option("-o", "--format", summary="Columns, such as '%%i %%j %%T'.")
    parser.option("-O", "--Format", dest="names", summary="Columns, such as jobid:8,name,state.")
    parser.option("-S", "--sort", summary="Letters of -o to sort by, such as P,-p; -: descending.")
    parser.flag("--start", summary="Queued jobs with their start estimates.")
    parser.flag("-l", "--long", summary="Long state names, and time limits.")
    parser.flag("-h", "--noheader", summary="Omit the header line.")
    parser.flag("-a", "--all", summary="Accepted without effect.")
    parser.flag("-r", "--array", summary="Accepted without effect: each array task is a job.")
    take_json(parser)
    return parser.parse_args(joined(arguments))


def run_sacct(session: Session, arguments: Sequence[str]) -> None:
    """List jobs, including ended jobs."""
    parser = Parser("sacct", "List jobs, including ended jobs.")
    _filters(parser)
    parser.option("-s", "--state", dest="states", summary="Slurm states, such as CD,F.")
    parser.option(
        "-S", "--starttime", summary="Only jobs live at or after this time, such as now-2days."
    )
    parser.option("-E", "--endtime", summary="Only jobs submitted until this time.")
    parser.option("-o", "--format", summary="Columns, such as JobID,State%%12,Elapsed.")
    parser.flag("-X", "--allocations", summary="Accepted without effect: one line per job.")
    parser.flag("-a", "--allusers", summary="Accepted without effect.")
    parser.flag("-n", "--noheader", summary="Omit the header line.")
    parser.flag("-P", "--parsable2", summary="Columns separated by |.")
    take_json(parser)
    given = parser.parse_args(list(arguments))
    as_json = wants_json(given, columns=[given.format])
    columns, names = accounting_columns()
    wanted = given.format or _ACCOUNTING
    if given.parsable2:
        layout = by_names(_WIDTH.sub("", wanted), names, between="|")
    else:
        layout = by_names(wanted, names, between=" ", width=10)
    span = _span(given.starttime, given.endtime)
    with session.client() as client:
        found = _jobs(client, given, _states(given.states) if given.states else None, span=span)
        rows, more = _shown("sacct", found)
        if needs_details(keys_of(layout)) and not given.jobs:
            rows = [dict(client.get(f"jobs/{row['id']}/")) for row in rows]
    if as_json:
        now = datetime.now(tz=UTC)
        typer.echo(document("sacct", "jobs", [accounted_job(row, now) for row in rows], more))
        return
    _echo(lines_of(layout, columns, rows, header=not given.noheader))


def _span(start: str, end: str) -> Span:
    now = datetime.now(tz=UTC)
    since = read_moment(start, now) if start else None
    return since, read_moment(end, now) if end else None


def _is_within(row: Mapping[str, Any], span: Span) -> bool:
    """Return whether a job was submitted before the end of the span and ran or waited in it."""
    since, until = span
    ended, submitted = moment(row.get("finished_at")), moment(row["submitted_at"])
    too_old = since is not None and ended is not None and ended < since
    too_new = until is not None and submitted is not None and submitted > until
    return not (too_old or too_new)


def run_scancel(session: Session, arguments: Sequence[str]) -> None:
    """Stop jobs by ID, or the jobs of a user by name, partition or state."""
    summary = "Stop jobs by ID, or the jobs of a user by name, partition or state."
    parser = Parser("scancel", summary)
    parser.add_argument(
        "numbers",
        nargs="*",
        metavar="JOB",
        help="Job ID(s). Tasks of arrays: 12_3, 12_[0-4].",
    )
    parser.option("-u", "--user", summary="Jobs of this user.")
    parser.flag("--me", summary="Your own jobs.")
    parser.option("-n", "--name", summary="Jobs of this name.")
    parser.option("-p", "--partition", summary="Jobs in this virtual cluster.")
    parser.option("-t", "--state", summary="Only jobs in these Slurm states.")
    parser.flag("-Q", "--quiet", summary="Accepted without effect.")
    given = parser.parse_args(list(arguments))
    if not given.numbers and not (given.user or given.me or given.name or given.partition):
        raise UsageError("scancel: no job identification provided")
    with session.client() as client:
        wanted = numbers_of(client, given.numbers)
        if not wanted:
            given.jobs, given.account = "", ""
            rows = _jobs(client, given, _states(given.state), mine=given.me)
            wanted = [int(row["id"]) for row in rows]
        for number in wanted:
            client.stop(number)


def run_scontrol(session: Session, arguments: Sequence[str]) -> None:
    """Show one job as names and values: scontrol show job N."""
    words = list(arguments)
    if words in (["--help"], ["-h"]):
        typer.echo(_SCONTROL)
        return
    if len(words) != 3 or words[0] != "show" or not "jobid".startswith(words[1].lower()[:5]):
        raise UsageError("scontrol: only `scontrol show job JOB_ID` is supported")
    with session.client() as client:
        row = dict(client.get(f"jobs/{number_of(client, words[2])}/"))
    now = datetime.now(tz=UTC)
    pairs = (
        ("JobId", row["id"]), ("JobName", row["name"]), ("UserId", row["user"]),
        ("Account", row.get("tenant", "")), ("Partition", row["virtual_cluster"]),
        ("Priority", row.get("priority", "")), ("JobState", state_of(row)[1]),
        ("Reason", reason_of(row)), ("RunTime", elapsed(row, now)),
        ("TimeLimit", span(row.get("max_duration"))), ("SubmitTime", clock(row["submitted_at"])),
        ("StartTime", clock(row.get("started_at") or row.get("expected_start"))),
        ("EndTime", clock(row.get("finished_at"))),
        ("NodeList", nodes_of(row)), ("NumNodes", node_count(row)),
        ("TresPerJob", f"gres/gpu:{row.get('devices', 0)}"),
        ("ExitCode", f"{row.get('exit_code') or 0}:0"),
    )  # fmt: skip
    _echo([f"   {name}={printable(str(value))}" for name, value in pairs])


def _filters(parser: Parser) -> None:
    parser.option("-u", "--user", summary="Only jobs of this user.")
    parser.option("-j", "--jobs", summary="Only these jobs, separated by commas, such as 7,12_3.")
    parser.option("-p", "--partition", summary="Only jobs in this virtual cluster.")
    parser.option("-A", "--account", summary="Only jobs of this tenant.")


def _states(text: str) -> str:
    """Parse a list of Slurm states into job states; an empty list means all live states."""
    if not text:
        return "live"
    if text.lower() == "all":
        return "live,ended"
    wanted = {word.strip().upper() for word in text.split(",")}
    found = [state for state, names in STATES.items() if wanted & set(names)]
    unknown = wanted - {name for names in STATES.values() for name in names}
    if unknown:
        known = ", ".join(sorted({name for names in STATES.values() for name in names}))
        raise UsageError(f"unknown state {min(unknown)[:40]}; use one of {known}")
    return ",".join(found)


def _jobs(
    client: Client,
    given: argparse.Namespace,
    states: str | None,
    *,
    mine: bool = False,
    many: bool = False,
    span: Span = (None, None),
) -> Iterator[dict[str, Any]]:
    """Yield the requested jobs; further pages are fetched on demand.

    Args:
        client: client that fetches them.
        given: filters of the list.
        states: job states, separated by commas; None for any.
        mine: only jobs of the caller.
        many: the name may be several names, separated by commas.
        span: only jobs of this time span.
    """
    since, until = span
    if given.jobs:
        found = (dict(client.get(f"jobs/{one}/")) for one in numbers_of(client, [given.jobs]))
        yield from (row for row in found if _is_within(row, span))
        return
    name = getattr(given, "name", "") or ""
    names = {name, *name.split(",")} if many else {name}
    for row in client.pages(
        "jobs/",
        state=states,
        user=given.user or None,
        mine=1 if mine else None,
        virtual_cluster=given.partition or None,
        tenant=getattr(given, "account", "") or None,
        ended_since=since and since.isoformat(),
        submitted_until=until and until.isoformat(),
    ):
        # A task of an array also has the name of its script.
        array = (row.get("labels") or {}).get(ARRAY)
        if (not name or names & {row["name"], array}) and _is_within(row, span):
            yield dict(row)


def _shown(
    command: str, rows: Iterator[dict[str, Any]]
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Return at most ``MOST`` rows and a remark, also on stderr, if there are more."""
    found = list(islice(rows, MOST))
    if next(rows, None) is None:
        return found, ()
    words = (
        f"only the newest {MOST} jobs are listed, and there are more: "
        "filter by user, partition or state"
    )
    typer.echo(f"{command}: {words}", err=True)
    return found, (words,)


def _echo(lines: Sequence[str]) -> None:
    for line in lines:
        typer.echo(line)
