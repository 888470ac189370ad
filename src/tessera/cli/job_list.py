"""Lists of jobs: ``ps``, the live screen ``top``, and ``usage``."""

import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Any, Final

import typer
from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from tessera.cli.job_details import harmless
from tessera.cli.output import (
    LONGEST_LINE,
    AsJson,
    Utc,
    moment,
    out,
    print_json,
    print_table,
    shown,
    state_text,
    table_of,
)
from tessera.cli.session import Session
from tessera.client import Client
from tessera.ranges import units
from tessera.results import Job

COLUMNS: Final = ("ID", "NAME", "STATE", "VC", "USER", "DEV", "START", "RUN", "REASON")
LONGEST_NAME: Final = 24
OTHER_COLUMNS: Final = 96
"""Width of the columns other than REASON on a terminal, about."""
LEAST_REASON: Final = 24
LEAST_SECONDS: Final = 1.0
ORDERS: Final = ("newest", "oldest", "started", "ended", "longest", "devices", "device-hours")
GROUPS: Final = ("tenant", "virtual_cluster", "person", "job", "day")
Limit = Annotated[int, typer.Option("--limit", min=1, help="Maximum number of jobs.")]
State = Annotated[
    str | None, typer.Option("--state", help="States separated by commas, or live, or ended.")
]
Vc = Annotated[str | None, typer.Option("--vc", help="Only this virtual cluster.")]
User = Annotated[str | None, typer.Option("--user", help="Only this user's jobs.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    for command in (ps, top, usage):
        app.command()(command)


def ps(
    context: typer.Context,
    state: State = None,
    vc: Vc = None,
    user: User = None,
    limit: Limit = 50,
    *,
    order: Annotated[
        str | None, typer.Option("--order", help=f"One of {', '.join(ORDERS)}.")
    ] = None,
    utc: Utc = False,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first: devices, start (~: estimated), run time and waiting reason."""
    session: Session = context.obj
    with session.client() as client:
        jobs = client.jobs(state=state, virtual_cluster=vc, user=user, order=order)
        found = list(islice(jobs, limit))
    if as_json:
        print_json([dict(job.body) for job in found])
        return
    print_table(
        COLUMNS,
        _rows(found, datetime.now(tz=UTC), width=_width(), utc=utc),
        empty="No jobs. Submit one: tessera submit --vc NAME -- echo hello",
        folded=False,
    )


def top(
    context: typer.Context,
    vc: Vc = None,
    user: User = None,
    limit: Limit = 40,
    seconds: Annotated[
        float, typer.Option("--seconds", min=LEAST_SECONDS, help="Interval between two screens.")
    ] = 2.0,
    *,
    once: Annotated[bool, typer.Option("--once", help="Print one screen and exit.")] = False,
    utc: Utc = False,
    as_json: AsJson = False,
) -> None:
    """Show live jobs and the use of virtual clusters until Ctrl-C."""
    session: Session = context.obj
    with session.client() as client:
        wanted = {"state": "live", "virtual_cluster": vc, "user": user}
        if as_json:
            print_json(_read(client, wanted, limit))
            return
        console = out()
        if not console.is_terminal:
            console.width = LONGEST_LINE
        if once or not console.is_terminal:
            console.print(_screen(_read(client, wanted, limit), utc=utc))
            return
        with Live(console=console, screen=True, auto_refresh=False) as live:
            try:
                while True:
                    live.update(_screen(_read(client, wanted, limit), utc=utc), refresh=True)
                    time.sleep(seconds)
            except KeyboardInterrupt:
                return


def usage(
    context: typer.Context,
    by: Annotated[str, typer.Option("--by", help=f"One of {', '.join(GROUPS)}.")] = "person",
    since: Annotated[
        str | None, typer.Option("--since", help="First day (UTC); default: day 1 of the month.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", help="Last day (UTC); default: today.")
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Show device-hours of a period; CPU slots are counted separately from GPUs."""
    session: Session = context.obj
    with session.client() as client:
        found = client.get("usage/", by=by, since=since, until=until)
    if as_json:
        print_json(found)
        return
    out().print(f"{found['since']} to {found['until']} (UTC)", markup=False)
    lines = [(line["name"], line["tenant"], line) for line in found["lines"]]
    if lines:
        lines.append(("total", "", found))
    print_table(
        ("NAME", "TENANT", "GPU-H", "BORROWED", "LOST", "SLOT-H"),
        (
            (
                escape(name),
                escape(tenant),
                _hours(line["gpu_hours"], "guaranteed", "borrowed"),
                _hours(line["gpu_hours"], "borrowed"),
                _hours(line["gpu_hours"], "lost_preempted", "lost_failed"),
                _hours(line["slot_hours"], "guaranteed", "borrowed"),
            )
            for name, tenant, line in lines
        ),
        empty="No usage in this period.",
        numbers=("GPU-H", "BORROWED", "LOST", "SLOT-H"),
    )


def _hours(hours: Mapping[str, Any], *parts: str) -> str:
    return f"{sum(float(hours[part]) for part in parts):,.1f}"


def _read(client: Client, wanted: Mapping[str, str | None], limit: int) -> dict[str, Any]:
    jobs = islice(client.pages("jobs/", **wanted), limit)
    return {"jobs": list(jobs), "virtual_clusters": list(client.pages("virtual-clusters/"))}


def _screen(found: Mapping[str, Any], *, utc: bool) -> Group:
    now = datetime.now(tz=UTC)
    jobs = [Job.from_body(body) for body in found["jobs"]]
    counts: dict[str, int] = {}
    for job in jobs:
        counts[job.state] = counts.get(job.state, 0) + 1
    summary = ", ".join(f"{number} {state}" for state, number in counts.items()) or "no live jobs"
    clusters = table_of(
        ("VC", "USED", "GUARANTEED", "WAITING"),
        map(_cluster_row, found["virtual_clusters"]),
        numbers=("USED", "GUARANTEED", "WAITING"),
    )
    listed = table_of(COLUMNS, _rows(jobs, now, width=_width(), utc=utc), folded=False)
    return Group(
        Text(f"{shown(now, utc=utc):%H:%M:%S %Z}  {summary}"), Text(), clusters, Text(), listed
    )


def _cluster_row(body: Mapping[str, Any]) -> tuple[str, ...]:
    devices = body["devices"]
    return (
        escape(harmless(str(body["name"]))),
        str(devices["used"]),
        str(devices["guarantee"]),
        str(body["jobs_queued"]),
    )


def _width() -> int | None:
    """Return the width of the terminal; None for other outputs, which get whole texts."""
    console = out()
    return console.width if console.is_terminal else None


def _short(text: str, most: int | None) -> str:
    text = harmless(text)
    return escape(text if most is None or len(text) <= most else f"{text[: most - 1]}…")


def _rows(
    jobs: Iterable[Job], now: datetime, *, width: int | None, utc: bool
) -> Iterable[tuple[str, ...]]:
    longest = None if width is None else max(LEAST_REASON, width - OTHER_COLUMNS)
    for job in jobs:
        body = job.body
        reason = body.get("reason") or {}
        yield (
            str(job.id),
            _short(job.name, None if width is None else LONGEST_NAME),
            state_text("held" if body.get("held") and job.state == "queued" else job.state),
            escape(job.virtual_cluster),
            escape(job.user),
            str(body.get("devices") or ""),
            _start(body, now, utc=utc),
            _run_time(body, now),
            _short(str(reason.get("text") or ""), longest),
        )


def _start(body: Mapping[str, Any], now: datetime, *, utc: bool) -> str:
    """Format the start, or with ``~`` the estimated one; the day only if it is another one."""
    started, expected = moment(body.get("started_at")), moment(body.get("expected_start"))
    if started is None and (expected is None or body.get("state") != "queued"):
        return ""
    at = shown(started or expected or now, utc=utc)
    is_today = at.date() == shown(now, utc=utc).date()
    text = f"{at:%H:%M %Z}" if is_today else f"{at:%Y-%m-%d %H:%M %Z}"
    return text if started else f"~{text}"


def _run_time(body: Mapping[str, Any], now: datetime) -> str:
    started, finished = moment(body.get("started_at")), moment(body.get("finished_at"))
    if started is None:
        return ""
    seconds = max(0, int(((finished or now) - started).total_seconds()))
    return " ".join(" ".join(pair) for pair in units(seconds))
