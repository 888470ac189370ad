"""Exit statuses of the command line, and their assignment to errors."""

import json
import shlex
import sys
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final

from rich.console import Console
from rich.markup import escape

from tessera.client import ApiError, ClientError, FieldError, UnreachableError


class Exit(IntEnum):
    """Exit statuses of a command."""

    OK = 0
    REFUSED = 1
    USAGE = 2
    UNREACHABLE = 3
    NOT_ALLOWED = 4
    NOT_FOUND = 5
    NEVER_FITS = 6
    JOB_FAILED = 10
    JOB_STOPPED = 11
    INTERRUPTED = 130


EXIT_HELP: Final = (
    "Exit status: 0 success; 1 request refused; 2 usage error; 3 portal unreachable; "
    "4 not signed in or not allowed; 5 not found; 6 the job of a plan never fits; "
    "10 the awaited job failed; 11 the awaited job was stopped; 130 interrupted."
)
_OF_STATUS: Final = {401: Exit.NOT_ALLOWED, 403: Exit.NOT_ALLOWED, 404: Exit.NOT_FOUND}
_OF_STATE: Final = {
    "succeeded": Exit.OK,
    "failed": Exit.JOB_FAILED,
    "stopped": Exit.JOB_STOPPED,
}


class UsageError(ClientError):
    """The arguments are not valid; the message contains the remedy."""


def exit_of_job(state: str) -> Exit:
    """Return the exit status for the end of a job."""
    return _OF_STATE.get(state, Exit.OK)


def run_and_exit(command: Callable[[], Any]) -> None:
    """Run a command; errors are printed on standard error and set the exit status."""
    try:
        command()
    except ClientError as error:
        sys.exit(explain(error))
    except KeyboardInterrupt:
        sys.exit(Exit.INTERRUPTED)
    except BrokenPipeError:
        # The reader of the output has exited (`| head`); a message would have no reader.
        sys.stderr.close()
        sys.exit(Exit.OK)


def explain(error: ClientError) -> Exit:
    """Print an error with field, value and remedy if known, and return the exit status."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if isinstance(error, ApiError):
        return _explain_refusal(error, console)
    console.print(f"[red]error:[/] {escape(str(error))}")
    if isinstance(error, UnreachableError):
        console.print(
            "Check that the portal runs (`tessera up`). Its address comes from "
            "`tessera --url URL ...`, TESSERA_URL or the last `tessera login`."
        )
        return Exit.UNREACHABLE
    return Exit.USAGE


def _explain_refusal(error: ApiError, console: Console) -> Exit:
    console.print(f"[red]error:[/] {escape(error.title)} [dim]({escape(error.code)})[/]")
    for found in error.errors:
        console.print("  " + _field_line(found))
        if found.remedy:
            console.print(f"    [green]→[/] {escape(found.remedy)}")
    if error.status == 401:
        # The URL is stored, too: a later login without one uses it.
        where = f"--url {shlex.quote(error.url)} " if error.url else ""
        console.print(f"Sign in with `tessera {escape(where)}login`, or set TESSERA_TOKEN.")
    return _OF_STATUS.get(error.status, Exit.REFUSED)


def _field_line(found: FieldError) -> str:
    shown = found.value if isinstance(found.value, str) else json.dumps(found.value)
    value = "" if found.value is None else f" = {shown}"
    where = f"[bold]{escape(found.field)}[/]{escape(value)}: " if found.field else ""
    return where + escape(found.message)
