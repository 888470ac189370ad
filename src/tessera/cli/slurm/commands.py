"""``tessera slurm sbatch ...``: Slurm's commands as words of the command line."""

import shlex
from pathlib import Path
from typing import Annotated, Final

import typer

from tessera.cli.session import Session
from tessera.cli.slurm.lists import (
    run_sacct,
    run_scancel,
    run_scontrol,
    run_squeue,
)
from tessera.cli.slurm.nodes import run_sinfo
from tessera.cli.slurm.sbatch import run_sbatch
from tessera.cli.slurm.wrappers import write_wrappers

_AS_THEY_ARE: Final = {
    "ignore_unknown_options": True,
    "allow_extra_args": True,
    "allow_interspersed_args": False,
    "help_option_names": [],
}
COMMANDS: Final = {
    "sbatch": run_sbatch,
    "squeue": run_squeue,
    "scancel": run_scancel,
    "sinfo": run_sinfo,
    "scontrol": run_scontrol,
    "sacct": run_sacct,
}


def register(app: typer.Typer) -> None:
    """Add the group ``slurm``."""
    group = typer.Typer(name="slurm", help="Slurm-compatible commands.", no_args_is_help=True)
    for name in COMMANDS:
        _add(group, name)
    group.command()(wrappers)
    app.add_typer(group)


def wrappers(
    directory: Annotated[Path, typer.Argument(help="Directory; created if missing.")],
) -> None:
    """Write executables of these names, for scripts, which ignore aliases."""
    write_wrappers(directory, tuple(COMMANDS))
    typer.echo(f"{', '.join(COMMANDS)} are in {directory}. Put it before the others on PATH:")
    typer.echo(f"  export PATH={shlex.quote(str(directory.resolve()))}:$PATH")


def _add(group: typer.Typer, name: str) -> None:
    act = COMMANDS[name]

    def command(context: typer.Context) -> None:
        session: Session = context.obj
        act(session, context.args)

    help_text = (act.__doc__ or "").strip().split("\n")[0]
    group.command(name, help=help_text, context_settings=_AS_THEY_ARE)(command)
