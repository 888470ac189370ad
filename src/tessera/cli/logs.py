"""The command ``logs``, and following a log while a job runs."""

import re
import sys
from typing import Annotated

import typer

from tessera.cli.output import AsJson, print_json
from tessera.cli.session import Session
from tessera.client import Client

_COLOUR = r"\x1b\[[0-9;]*m"
_DRIVING = re.compile(rf"(?!{_COLOUR})[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(logs)


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


def follow(
    client: Client,
    job_id: int,
    *,
    role: str = "",
    rank: int | None = None,
    offset: int = 0,
    on: bool = True,
) -> None:
    """Copy a log to standard output as it grows; ``on=False`` copies what is there.

    When the output is a terminal, control characters that could drive it are shown, not obeyed: a
    log is written by somebody else's program.
    """
    guarded = sys.stdout.isatty()
    pieces = client.follow_logs(job_id, role=role, rank=rank, offset=offset, follow=on)
    for text in pieces:
        sys.stdout.write(harmless(text) if guarded else text)
        sys.stdout.flush()


def harmless(text: str) -> str:
    """``text`` with every control character that could drive a terminal made visible.

    Line ends, tabs, returns to the line's start (progress bars) and colours stay.
    """
    return _DRIVING.sub(lambda found: "".join(f"\\x{ord(c):02x}" for c in found[0]), text)
