"""``up`` and ``simulate``: start programs that only a checkout contains."""

import os
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from tessera.cli.exits import UsageError
from tessera.isolation import PLAIN_LEVELS

_AS_THEY_ARE: Final = {
    "ignore_unknown_options": True,
    "allow_extra_args": True,
    "help_option_names": [],
}
CHECKOUT = Path(__file__).resolve().parents[3]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(up)
    app.command(context_settings=_AS_THEY_ARE)(simulate)


def up(
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port; 0: any free port.")
    ] = 8000,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", help="Data directory; default: var in the checkout."),
    ] = None,
    admin_password: Annotated[
        str, typer.Option("--admin-password", help="Admin password; visible to others in ps.")
    ] = "",
    admin_password_file: Annotated[
        Path | None,
        typer.Option("--admin-password-file", help="File whose first line is the admin password."),
    ] = None,
    *,
    no_demo: Annotated[
        bool, typer.Option("--no-demo", help="Do not create demo nodes and users.")
    ] = False,
    no_history: Annotated[
        bool, typer.Option("--no-history", help="Do not create the history of the demo cluster.")
    ] = False,
    demo_isolation: Annotated[
        str,
        typer.Option(
            "--demo-isolation",
            help="Highest isolation level of demo jobs: none, namespace or user.",
        ),
    ] = "",
) -> None:
    """Start the portal on this machine: web, workers, Redis and a demo cluster."""
    if not (CHECKOUT / "portal" / "supervisor").is_dir():
        raise UsageError("`tessera up` needs a checkout of the repository: run ./tessera up there")
    if not no_demo and not (CHECKOUT / "demo").is_dir():
        raise UsageError("this installation has no demo: use --no-demo")
    if admin_password and admin_password_file:
        raise UsageError("--admin-password and --admin-password-file cannot be combined")
    program = "portal.supervisor" if no_demo else "demo"
    command = [sys.executable, "-m", program, "--port", str(port), "--host", host]
    if data_dir is not None:
        command += ["--data-dir", str(data_dir.absolute())]
    if demo_isolation and demo_isolation not in PLAIN_LEVELS:
        raise UsageError(
            f"--demo-isolation {demo_isolation!r} is not valid: use none, namespace or user"
        )
    if demo_isolation and not no_demo:
        command += ["--demo-isolation", demo_isolation]
    if no_history and not no_demo:
        command.append("--no-history")
    if admin_password:
        command += ["--admin-password-file", _behind_a_pipe(admin_password)]
    elif admin_password_file:
        command += ["--admin-password-file", str(admin_password_file.absolute())]
    os.chdir(CHECKOUT)
    os.execv(sys.executable, command)  # noqa: S606 - no shell is wanted


def simulate(context: typer.Context) -> None:
    """Simulate a trace under a policy, with the options of manage.py simulate."""
    program = CHECKOUT / "manage.py"
    if not program.is_file():
        raise UsageError(
            "`tessera simulate` needs a checkout of the repository: run ./tessera simulate there"
        )
    command = [sys.executable, str(program), "simulate", *context.args]
    os.execv(sys.executable, command)  # noqa: S606 - no shell is wanted


def _behind_a_pipe(password: str) -> str:
    """Return a path from which only the next program can read the password, once."""
    reader, writer = os.pipe()
    os.write(writer, password.encode() + b"\n")
    os.close(writer)
    os.set_inheritable(reader, True)
    return f"/dev/fd/{reader}"
