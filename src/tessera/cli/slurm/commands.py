"""``tessera slurm sbatch ...``: Slurm's commands as words of the command line."""

from typing import Final

import typer

from tessera.cli.session import Session
from tessera.cli.slurm.lists import (
    run_sacct,
    run_scancel,
    run_scontrol,
    run_sinfo,
    run_squeue,
)
from tessera.cli.slurm.sbatch import run_sbatch

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
    group = typer.Typer(
        name="slurm", help="Slurm's commands, for fingers that know them.", no_args_is_help=True
    )
    for name in COMMANDS:
        _add(group, name)
    app.add_typer(group)


def _add(group: typer.Typer, name: str) -> None:
    act = COMMANDS[name]

    def command(context: typer.Context) -> None:
        session: Session = context.obj
        act(session, context.args)

    help_text = (act.__doc__ or "").strip().split("\n")[0]
    group.command(name, help=help_text, context_settings=_AS_THEY_ARE)(command)
