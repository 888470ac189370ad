"""``tessera slurm sbatch ...``: Slurm's commands as subcommands."""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from tessera.cli.exits import UsageError
from tessera.cli.session import Session
from tessera.cli.slurm.lists import (
    run_sacct,
    run_scancel,
    run_scontrol,
    run_squeue,
)
from tessera.cli.slurm.nodes import run_sinfo
from tessera.cli.slurm.sbatch import run_sbatch

_MARK: Final = "# Written by `tessera slurm wrappers`."


def write_wrappers(directory: Path, names: Sequence[str]) -> None:
    """Write an executable for each name that runs the command with that name.

    Raises:
        UsageError: a file of another program would be replaced, or the directory is not writable.
    """
    files = [directory / name for name in names]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        foreign = [str(file) for file in files if not _is_ours(file)]
        if foreign:
            raise UsageError(f"{', '.join(foreign)} would be replaced: use another directory")
        for file in files:
            _write(file)
    except OSError as error:
        raise UsageError(f"{error.filename or directory}: {error.strerror}") from error


def _is_ours(file: Path) -> bool:
    """Return whether the file can be overwritten without loss."""
    if not os.path.lexists(file):
        return True
    return file.is_file() and not file.is_symlink() and _MARK in file.read_text(errors="replace")


def _write(file: Path) -> None:
    # -P: the current directory of the user may contain a folder `tessera`.
    program = shlex.join([sys.executable, "-P", "-m", "tessera.cli", "slurm", file.name])
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    partial.write_text(f'#!/bin/sh\n{_MARK}\nexec {program} "$@"\n')
    partial.chmod(0o755)
    partial.replace(file)


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
    """Write executables with the names of Slurm commands, for use in scripts."""
    write_wrappers(directory, tuple(COMMANDS))
    typer.echo(f"Wrote {', '.join(COMMANDS)} to {directory}. Put it at the start of PATH:")
    typer.echo(f"  export PATH={shlex.quote(str(directory.resolve()))}:$PATH")


def _add(group: typer.Typer, name: str) -> None:
    act = COMMANDS[name]

    def command(context: typer.Context) -> None:
        session: Session = context.obj
        act(session, context.args)

    help_text = (act.__doc__ or "").strip().split("\n")[0]
    group.command(name, help=help_text, context_settings=_AS_THEY_ARE)(command)
