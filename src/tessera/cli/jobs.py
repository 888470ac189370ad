"""Commands for jobs: ``submit``, ``plan``, ``why``, ``stop`` and ``clone``."""

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from math import inf
from typing import Annotated, Any, Final

import typer
from rich.markup import escape
from typer.core import TyperCommand

from tessera.cli.exits import Exit, UsageError, exit_of_job
from tessera.cli.job_details import follow, print_draft_grids, print_grids
from tessera.cli.output import (
    AsJson,
    Utc,
    err,
    out,
    print_json,
    say_warnings,
    shown,
    state_text,
)
from tessera.cli.session import Session
from tessera.cli.specs import InlineJob, spec_of
from tessera.cli.upload import with_upload
from tessera.client import ApiError, Client, Spec
from tessera.ranges import StartRange, start_range, units
from tessera.results import Job

POLL_SECONDS = 0.5
_DASHES: Final = "tessera.dashes"
_PENDING: Final = {"steps": "remedies", "eta": "start estimate"}


class CommandOrFile(TyperCommand):
    """A command that records whether its arguments followed ``--``, so that none is a file."""

    # Any: older versions of typer use click's context, newer versions have their own.
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Record the separator ``--``; the parser drops it."""
        if "--" in args:
            ctx.meta[_DASHES] = True
        return super().parse_args(ctx, args)


JobId = Annotated[int, typer.Argument(help="Job ID.", min=1)]
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE.yaml | -- COMMAND ...]",
        help="A job specification (- reads standard input), or a command with its arguments.",
        show_default=False,
    ),
]
Name = Annotated[str, typer.Option("--name", help="Name of the job.")]
Vc = Annotated[
    str, typer.Option("--vc", help="Virtual cluster; default: your only virtual cluster.")
]
Command = Annotated[str, typer.Option("--command", help="Command line for the shell.")]
Role = Annotated[str, typer.Option("--role", help="Name of the role (default worker).")]
Instances = Annotated[int | None, typer.Option("--instances", help="Instances (default 1).")]
Devices = Annotated[
    int | None, typer.Option("--devices", help="Devices of each instance (default 1).")
]
PerDevice = Annotated[
    bool, typer.Option("--per-device", help="Run the command once for each device.")
]
DeviceType = Annotated[str, typer.Option("--type", help="Device type.")]
Cpus = Annotated[float | None, typer.Option("--cpus", help="CPUs of each instance.")]
Memory = Annotated[str, typer.Option("--memory", help="Memory of each instance, e.g. 8GiB.")]
Image = Annotated[str, typer.Option("--image", help="Container image.")]
Priority = Annotated[str, typer.Option("--priority", help="Priority class, or a number.")]
Opportunistic = Annotated[
    bool,
    typer.Option("--opportunistic", help="Use idle devices; may be preempted at any time."),
]
Env = Annotated[list[str] | None, typer.Option("--env", help="Variable NAME=VALUE; repeatable.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(cls=CommandOrFile)(submit)
    app.command(cls=CommandOrFile)(plan)
    for command in (why, grids, stop, clone):
        app.command()(command)


def submit(
    context: typer.Context,
    words: Words = None,
    *,
    name: Name = "",
    vc: Vc = "",
    command: Command = "",
    role: Role = "",
    instances: Instances = None,
    devices: Devices = None,
    per_device: PerDevice = False,
    device_type: DeviceType = "",
    cpus: Cpus = None,
    memory: Memory = "",
    image: Image = "",
    priority: Priority = "",
    env: Env = None,
    opportunistic: Opportunistic = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the job ends.")] = False,
    follow_log: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the log of the job.")
    ] = False,
    upload: Annotated[
        bool,
        typer.Option(
            "--upload", help="Upload the files next to FILE that its commands name, as source."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Submit a job: a specification file, or a command with options."""
    inline = InlineJob(
        name=name, virtual_cluster=vc, command=command, role=role, instances=instances,
        devices=devices, per_device=per_device, device_type=device_type, cpus=cpus,
        memory=memory, image=image, priority=priority, opportunistic=opportunistic,
        env=tuple(env or ()),
    )  # fmt: skip
    if follow_log and as_json:
        raise UsageError("--follow and --json cannot be combined: the log would mix with the JSON")
    session: Session = context.obj
    with session.client() as client:
        wanted = spec_of(words or (), inline, is_command=_DASHES in context.meta)
        wanted = with_virtual_cluster(wanted, client)
        if upload:
            wanted = with_upload(wanted, words or (), client)
        job = client.submit(wanted)
        say_warnings(job.warnings)
        if not as_json:
            say_submitted(job)
        if follow_log:
            follow(client, job.id)
        if wait or follow_log:
            job = _wait(client, job.id)
        if as_json:
            print_json(dict(job.body))
    if wait or follow_log:
        if not as_json:
            err().print(f"job {job.id} {escape(job.name)}: {state_text(job.state)}")
        raise typer.Exit(exit_of_job(job.state))


def with_virtual_cluster(spec: Spec, client: Client) -> Spec:
    """Return a specification with the only virtual cluster of the user, if it names none."""
    if not isinstance(spec, dict) or "virtual_cluster" in spec or "protocolVersion" in spec:
        return spec
    try:
        found = list(islice(client.virtual_clusters(), 2))
    except ApiError:
        return spec  # the submit will report the same error
    return {**spec, "virtual_cluster": found[0].name} if len(found) == 1 else spec


def plan(
    context: typer.Context,
    words: Words = None,
    *,
    name: Name = "",
    vc: Vc = "",
    command: Command = "",
    role: Role = "",
    instances: Instances = None,
    devices: Devices = None,
    per_device: PerDevice = False,
    device_type: DeviceType = "",
    cpus: Cpus = None,
    memory: Memory = "",
    image: Image = "",
    priority: Priority = "",
    env: Env = None,
    opportunistic: Opportunistic = False,
    utc: Utc = False,
    as_json: AsJson = False,
) -> None:
    """Preview a job: whether, where and when it would start. Nothing is submitted."""
    inline = InlineJob(
        name=name, virtual_cluster=vc, command=command, role=role, instances=instances,
        devices=devices, per_device=per_device, device_type=device_type, cpus=cpus,
        memory=memory, image=image, priority=priority, opportunistic=opportunistic,
        env=tuple(env or ()),
    )  # fmt: skip
    session: Session = context.obj
    with session.client() as client:
        wanted = spec_of(words or (), inline, is_command=_DASHES in context.meta)
        answer = client.plan(with_virtual_cluster(wanted, client))
    if as_json:
        print_json(dict(answer.body))
    else:
        say_warnings(answer.warnings)
        text = f": {answer.text}" if answer.text else ""
        code = f" ({answer.code})" if answer.code else ""
        fits = "does not fit" if answer.fits == "never" else f"fits {answer.fits}"
        out().print(f"{fits}{text}{code}", markup=False)
        if answer.starts:
            starts = in_words(answer.starts, datetime.now(tz=UTC), utc=utc)
            out().print(f"starts {starts}", markup=False)
        elif answer.no_starts:
            out().print(str(answer.no_starts["text"]), markup=False)
    raise typer.Exit(Exit.NEVER_FITS if answer.fits == "never" else Exit.OK)


def grids(
    context: typer.Context,
    job: Annotated[str, typer.Argument(metavar="JOB|FILE", help="Job ID, or a document.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Show the grids of a hybrid job, or of a document before its submit."""
    session: Session = context.obj
    with session.client() as client:
        if job.isascii() and job.isdecimal():
            found = client.get(f"jobs/{job}/grids/")
            show: Callable[[Any], None] = print_grids
        else:
            wanted = spec_of((job,), InlineJob())
            found = client.plan(with_virtual_cluster(wanted, client)).body["grids"]
            show = print_draft_grids
    if as_json:
        print_json(found)
    else:
        show(found)


def why(
    context: typer.Context, job_id: JobId, *, utc: Utc = False, as_json: AsJson = False
) -> None:
    """Explain why a job waits, was refused or has ended, with remedies."""
    session: Session = context.obj
    with session.client() as client:
        answer = client.why(job_id)
    if as_json:
        print_json(dict(answer.body))
        return
    code = f" ({answer.code})" if answer.code else ""
    out().print(f"{answer.text}{code}", markup=False)
    for blocker in answer.blocked_by:
        out().print(f"  blocked by job {blocker}", markup=False)
    if answer.blocked_by_others:
        jobs = "1 job" if answer.blocked_by_others == 1 else f"{answer.blocked_by_others} jobs"
        out().print(f"  blocked by {jobs} of other tenants", markup=False)
    for remedy in answer.unblock:
        out().print(f"  → {remedy}", markup=False)
    if answer.eta:
        eta = in_words(answer.eta, datetime.now(tz=UTC), utc=utc)
        out().print(f"  expected {eta}", markup=False)
    elif answer.no_eta:
        out().print(f"  {answer.no_eta['text']}", markup=False)
    if answer.pending:
        words = " and ".join(_PENDING.get(name, name) for name in answer.pending)
        out().print(f"  still computing: {words}", markup=False)


def stop(
    context: typer.Context,
    job_ids: Annotated[list[int], typer.Argument(help="Job ID(s).", min=1)],
    *,
    as_json: AsJson = False,
) -> None:
    """Stop jobs. Each gets a notice and its grace period before it is killed."""
    session: Session = context.obj
    with session.client() as client:
        stopped = [client.stop(job_id) for job_id in job_ids]
    if as_json:
        print_json([dict(job.body) for job in stopped])
        return
    for job in stopped:
        out().print(f"{job.id} {escape(job.name)}: {state_text(job.state)}")


def clone(context: typer.Context, job_id: JobId, *, as_json: AsJson = False) -> None:
    """Submit a copy of a job. Secrets are not copied."""
    session: Session = context.obj
    with session.client() as client:
        job = client.clone(job_id)
    say_warnings(job.warnings)
    if as_json:
        print_json(dict(job.body))
    else:
        say_submitted(job)


def say_submitted(job: Job) -> None:
    """Print the jobs that a submit created."""
    out().print(f"job {job.id} {escape(job.name)}: {state_text(job.state)}")
    parts = [str(part) for part in job.body.get("parts") or ()]
    if len(parts) > 1:
        out().print(f"instances: jobs {', '.join(parts)}", markup=False)


def _wait(client: Client, job_id: int) -> Job:
    while True:
        job = client.job(job_id)
        if job.has_ended:
            return job
        time.sleep(POLL_SECONDS)


def in_words(seconds: Mapping[str, Any], now: datetime, *, utc: bool = False) -> str:
    """Format a range of the API as ``in 15 min – 35 min``; over 12 h ``today 20:00 – 21:30 CET``.

    Args:
        seconds: ``p10`` and ``p90`` from now; ``open``: ``p90`` is the horizon of the estimate;
            ``gate``: seconds until a gate opens.
        now: current time.
        utc: show times of the day in UTC, otherwise in the local time zone.
    """
    found = start_range(
        float(seconds["p10"]),
        inf if seconds.get("open") else seconds["p90"],
        soonest=float(seconds.get("gate") or 0.0),
    )
    if found is None:
        return "now"
    if found.by_clock:
        zone = shown(now + timedelta(seconds=found.low), utc=utc).tzname()
        return f"{_by_the_clock(found, now, utc=utc)} {zone}"
    if found.is_point:
        return f"in {_length(found.low)}"
    if found.high is None:
        return f"in {_length(found.low)} or later" if found.low else "at any time"
    low, high = _length(found.low), _length(found.high)
    return f"in {low.split()[0] if found.has_one_unit else low} – {high}"


def _by_the_clock(found: StartRange, now: datetime, *, utc: bool) -> str:
    low = _clock(found.low, now, utc=utc)
    day, _, time = low.rpartition(" ")
    if found.is_point:
        return f"at {time}" if day == "today" else low
    if found.high is None:
        return f"{low} or later"
    high = _clock(found.high, now, utc=utc)
    last_day, _, last_time = high.rpartition(" ")
    return f"{low} – {last_time if last_day == day else high}"


def _length(seconds: int) -> str:
    return " ".join(" ".join(pair) for pair in units(seconds))


def _clock(seconds: int, now: datetime, *, utc: bool) -> str:
    at = shown(now + timedelta(seconds=seconds), utc=utc)
    ahead = (at.date() - shown(now, utc=utc).date()).days
    day = {0: "today", 1: "tomorrow"}.get(ahead, f"{at.day} {at:%b}")
    return f"{day} {at:%H:%M}"
