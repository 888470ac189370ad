"""The commands ``status``, ``compare`` and ``logs`` about single jobs."""

import re
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer
from rich.markup import escape

from tessera.cli.output import (
    AsJson,
    Utc,
    clock,
    err,
    out,
    print_json,
    print_table,
    say_warnings,
    state_text,
)
from tessera.cli.session import Session
from tessera.client import Client
from tessera.isolation import RUN_WARNINGS
from tessera.results import Job

_COLOUR = r"\x1b\[[0-9;]*m"
_DRIVING = re.compile(rf"(?!{_COLOUR})[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def status(
    context: typer.Context,
    job_id: Annotated[int, typer.Argument(help="Job ID.", min=1)],
    *,
    utc: Utc = False,
    as_json: AsJson = False,
) -> None:
    """Show a job: state and times, and node, isolation level and network of each rank."""
    session: Session = context.obj
    with session.client() as client:
        job = client.job(job_id)
    if as_json:
        print_json(dict(job.body))
        return
    out().print(f"job {job.id} {escape(job.name)}: {state_text(job.state)}")
    for label, value in _facts(job, utc=utc):
        if value:
            out().print(f"  {label:<16}{value}", markup=False)
    say_warnings(job.warnings)
    ranks: list[Mapping[str, Any]] = list(job.body.get("placement") or ())
    if ranks:
        _print_ranks(ranks)
    for code, names in _warnings(ranks).items():
        text = RUN_WARNINGS.get(code, code)
        err().print(f"[yellow]warning:[/] {escape(f'{text} ({code}): {names}')}")


def _facts(job: Job, *, utc: bool) -> Iterator[tuple[str, str]]:
    body = job.body
    reason = body.get("reason") or {}
    tenant = body.get("tenant")
    yield "user", job.user
    yield "virtual cluster", f"{job.virtual_cluster} ({tenant})" if tenant else job.virtual_cluster
    yield "requests", str(body.get("wants") or "")
    yield "reason", f"{reason['text']} ({reason['code']})" if reason else ""
    yield "submitted", clock(job.submitted_at, utc=utc)
    yield "started", clock(body.get("started_at"), utc=utc)
    yield "finished", clock(body.get("finished_at"), utc=utc)
    exit_code = body.get("exit_code")
    yield "exit code", "" if exit_code is None else str(exit_code)
    yield "message", str(body.get("end_message") or "")


def _print_ranks(ranks: list[Mapping[str, Any]]) -> None:
    print_table(
        ("RANK", "NODE", "DEVICES", "STEP", "ISOLATION", "NETWORK"),
        (
            (
                escape(_name(rank)),
                escape(str(rank.get("node") or "")),
                ",".join(map(str, rank.get("devices") or ())),
                escape(str(rank.get("step") or "")),
                escape(str(rank.get("isolation") or "-")),
                escape(str(rank.get("network") or "-")),
            )
            for rank in ranks
        ),
        empty="",
    )


def print_grids(found: Mapping[str, Any]) -> None:
    """Print the grids of a hybrid job: estimated throughput and state of each."""
    out().print(escape(str(found["why"])))
    print_table(
        ("TYPE", "DEVICES", "STAGES", "PLAN", "SAMPLES/S", "PREDICTED", "MEASURED", "STATE"),
        (
            (
                escape(str(grid["type"])),
                str(grid["devices"]),
                str(grid["stages"]),
                escape(str(grid["shape"] or "-")),
                _figure(grid["samples_per_second"], ""),
                _figure(grid["predicted"], " s"),
                _figure(grid["measured"], " s"),
                "running" if grid["is_running"] else escape(str(grid["state"])),
            )
            for grid in found["grids"]
        ),
        empty="No grids: the model has not been profiled yet.",
    )
    for one in found.get("accuracy") or ():
        out().print(
            escape(
                f"Predictions on {one['type']}: median error {one['median_error']:.1%}, "
                f"p90 {one['p90_error']:.1%} ({one['runs']} runs of this tenant)"
            )
        )


def compare(
    context: typer.Context,
    job_ids: Annotated[list[int], typer.Argument(help="2 to 8 job IDs.", min=1)],
    *,
    as_json: AsJson = False,
) -> None:
    """Compare jobs: results of metrics, costs, and the fields that differ."""
    session: Session = context.obj
    with session.client() as client:
        found = client.get("jobs/compare/", jobs=",".join(map(str, job_ids)))
    if as_json:
        print_json(found)
        return
    runs: list[Mapping[str, Any]] = list(found["jobs"])
    heads = ("", *(f"{run['id']} {run['name']}" for run in runs))
    print_table(tuple(map(escape, heads)), _results(runs, found["goals"]), empty="No jobs.")
    print_table(
        tuple(map(escape, ("DIFFERENCE", *heads[1:]))),
        (
            tuple(escape(text or "-") for text in (field["path"], *field["values"]))
            for field in found["fields"]
            if field["differs"]
        ),
        empty="All compared fields are equal.",
    )


def _results(
    runs: list[Mapping[str, Any]], goals: Mapping[str, str | None]
) -> Iterator[tuple[str, ...]]:
    for name, goal in goals.items():
        for which in ("last", "best") if goal else ("last",):
            values = [(run["metrics"].get(name) or {}).get(which) for run in runs]
            yield (escape(f"{name}, {which}"), *(_figure(value, "") for value in values))
    for label, key, unit in (
        ("step", "last_step", ""),
        ("goodput", "goodput", "/s"),
        ("GPU hours", "gpu_hours", ""),
        ("CPU slot hours", "slot_hours", ""),
        ("time in the queue", "wait", " s"),
        ("preemptions", "preemptions", ""),
    ):
        yield (label, *(_figure(run[key], unit) for run in runs))


def print_draft_grids(found: Mapping[str, Any] | None) -> None:
    """Print the fastest grids of a hybrid job before its submit."""
    if found is None:
        out().print("No grids: the job has no field `parallel`, or is not valid.")
        return
    print_table(
        ("TYPE", "DEVICES", "STAGES", "PLAN", "SAMPLES/S", "SOURCE"),
        (
            (
                escape(str(grid["type"])),
                str(grid["devices"]),
                str(grid["stages"]),
                escape(str(grid["shape"])),
                _figure(grid["samples_per_second"], ""),
                "measured" if grid["is_measured"] else "profile",
            )
            for grid in found["grids"]
        ),
        empty="No grids: the model has not been profiled yet.",
    )
    if found["hidden"]:
        out().print(f"{found['hidden']} more")
    if found["to_profile"]:
        types = escape(", ".join(map(str, found["to_profile"])))
        out().print(f"Profile jobs would measure the model on {types}.")


def _figure(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.4g}{unit}"


def _warnings(ranks: list[Mapping[str, Any]]) -> dict[str, str]:
    """Return names of ranks, separated by commas, by warning code."""
    found: dict[str, list[str]] = {}
    for rank in ranks:
        for code in rank.get("warnings") or ():
            found.setdefault(str(code), []).append(_name(rank))
    return {code: ", ".join(names) for code, names in found.items()}


def _name(rank: Mapping[str, Any]) -> str:
    return f"{rank.get('role')} {rank.get('rank')}"


def logs(
    context: typer.Context,
    job_id: Annotated[int, typer.Argument(help="Job ID.", min=1)],
    role: Annotated[str, typer.Option("--role", help="Role; default: the first.")] = "",
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Rank in the role.")] = None,
    offset: Annotated[int, typer.Option("--offset", min=0, help="Offset of the first byte.")] = 0,
    *,
    follow_on: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the log until the job ends.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the log of a job."""
    session: Session = context.obj
    with session.client() as client:
        if as_json:
            wanted = {"role": role or None, "rank": rank, "offset": offset}
            print_json(client.get(f"jobs/{job_id}/logs/", **wanted))
        else:
            follow(client, job_id, role=role, rank=rank, offset=offset, on=follow_on)
            if not follow_on and (job := client.job(job_id)).state == "queued":
                err().print(f"job {job.id} is queued; it writes a log when it runs", markup=False)


def follow(
    client: Client,
    job_id: int,
    *,
    role: str = "",
    rank: int | None = None,
    offset: int = 0,
    on: bool = True,
) -> None:
    """Copy a log to standard output as it grows; ``on=False`` copies only its current content.

    On a terminal, control characters are printed visibly and have no effect, since a log may come
    from another user's program.
    """
    guarded = sys.stdout.isatty()
    pieces = client.follow_logs(job_id, role=role, rank=rank, offset=offset, follow=on)
    for text in pieces:
        sys.stdout.write(harmless(text) if guarded else text)
        sys.stdout.flush()


def harmless(text: str) -> str:
    """Return ``text`` with terminal control characters made visible.

    Line ends, tabs, returns to the line's start (progress bars) and colours stay.
    """
    return _DRIVING.sub(lambda found: "".join(f"\\x{ord(c):02x}" for c in found[0]), text)
