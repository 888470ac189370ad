"""The commands ``job show``, ``events``, ``hold`` and ``release``."""

from collections.abc import Sequence
from itertools import islice
from typing import Annotated, Final

import typer
from rich.markup import escape

from tessera.cli import job_details
from tessera.cli.output import AsJson, Utc, clock, out, print_json, print_table, state_text
from tessera.cli.session import Session

app = typer.Typer(
    help="One job: details, events, hold and release.", no_args_is_help=True, rich_markup_mode=None
)
app.command("show")(job_details.status)
JobId = Annotated[int, typer.Argument(help="Job ID.", min=1)]
JobIds = Annotated[list[int], typer.Argument(help="Job ID(s).", min=1)]
MOST_EVENTS: Final = 1000


def register(parent: typer.Typer) -> None:
    """Add the commands of this module."""
    parent.add_typer(app, name="job")


@app.callback()
def group() -> None:
    """Show a job and its events; hold and release queued jobs."""


@app.command()
def events(
    context: typer.Context,
    job_id: JobId,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=MOST_EVENTS, help="Maximum number of events.")
    ] = 200,
    *,
    utc: Utc = False,
    as_json: AsJson = False,
) -> None:
    """List the events of a job, oldest first."""
    session: Session = context.obj
    with session.client() as client:
        found = list(islice(client.pages(f"jobs/{job_id}/events/"), limit))
    if as_json:
        print_json(found)
        return
    print_table(
        ("TIME", "EVENT", "STATE", "ATTEMPT", "TEXT"),
        (
            (
                clock(row.get("at"), utc=utc),
                escape(str(row.get("kind") or "")),
                state_text(str(row.get("state") or "")),
                str(row.get("attempt") or ""),
                escape(job_details.harmless(str(row.get("text") or ""))),
            )
            for row in found
        ),
        empty="No events yet.",
    )


@app.command()
def hold(context: typer.Context, job_ids: JobIds, *, as_json: AsJson = False) -> None:
    """Hold queued jobs: rounds skip them until they are released."""
    _act(context, "hold", job_ids, as_json=as_json)


@app.command()
def release(context: typer.Context, job_ids: JobIds, *, as_json: AsJson = False) -> None:
    """Release held jobs into the queue."""
    _act(context, "release", job_ids, as_json=as_json)


def _act(context: typer.Context, act: str, job_ids: Sequence[int], *, as_json: bool) -> None:
    session: Session = context.obj
    with session.client() as client:
        found = [client.post(f"jobs/{job_id}/{act}/") for job_id in job_ids]
    if as_json:
        print_json(found)
        return
    for body in found:
        state = "held" if body.get("held") and body["state"] == "queued" else body["state"]
        out().print(f"{body['id']} {escape(str(body['name']))}: {state_text(state)}")
