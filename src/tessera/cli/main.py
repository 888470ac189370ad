"""The program ``tessera``: registers the commands and converts errors to exit statuses."""

import os
from functools import partial
from importlib import metadata
from typing import Annotated

import typer

from tessera.cli import (
    device_types,
    importing,
    job_details,
    job_group,
    job_limits,
    job_list,
    jobs,
    join,
    node_settings,
    people,
    session,
    sharing,
    storages,
    up,
    vcs,
)
from tessera.cli.exits import EXIT_HELP, run_and_exit
from tessera.cli.output import AsJson, print_json
from tessera.cli.slurm import commands as slurm

app = typer.Typer(
    name="tessera",
    help="Share a GPU cluster between teams, each with guaranteed capacity.",
    epilog=EXIT_HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _number() -> str:
    try:
        return metadata.version("tessera-cluster")
    except metadata.PackageNotFoundError:
        return "checkout"


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"tessera {_number()}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    url: Annotated[
        str, typer.Option(envvar="TESSERA_URL", help="Address of the portal.", show_default=False)
    ] = "",
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Show the version.",
        ),
    ] = False,
) -> None:
    """Read the options of every command; the token comes from TESSERA_TOKEN or ``login``."""
    context.obj = session.Session(url=url, token=os.environ.get("TESSERA_TOKEN", ""))


@app.command()
def version(*, as_json: AsJson = False) -> None:
    """Show the version."""
    if as_json:
        print_json({"version": _number()})
    else:
        typer.echo(f"tessera {_number()}")


up.register(app)
session.register(app)
jobs.register(app)
job_list.register(app)
job_group.register(app)
app.command()(join.join)
app.command()(job_details.status)
app.command()(job_details.compare)
importing.register(app)
app.command()(job_details.logs)
node_settings.register(app)
vcs.register(app)
storages.register(app)
device_types.register(app)
sharing.register(app)
people.register(app)
job_limits.register(app)
slurm.register(app)


def main() -> None:
    """Run the command line and end the process with its status."""
    run_and_exit(partial(app, prog_name="tessera"))
