"""Executables named ``sbatch``, ``squeue`` ... for scripts, which see no aliases of a shell."""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tessera.cli.exits import UsageError

_MARK: Final = "# Written by `tessera slurm wrappers`."


def write_wrappers(directory: Path, names: Sequence[str]) -> None:
    """Write an executable of each name that runs the command of that name.

    Raises:
        UsageError: a file of somebody else would be replaced, or nothing can be written there.
    """
    files = [directory / name for name in names]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        foreign = [str(file) for file in files if not _is_ours(file)]
        if foreign:
            raise UsageError(
                f"{', '.join(foreign)} would be replaced: name a directory of its own"
            )
        for file in files:
            _write(file)
    except OSError as error:
        raise UsageError(f"{error.filename or directory}: {error.strerror}") from error


def _is_ours(file: Path) -> bool:
    """Whether nothing is lost when the file is written."""
    if not os.path.lexists(file):
        return True
    return file.is_file() and not file.is_symlink() and _MARK in file.read_text(errors="replace")


def _write(file: Path) -> None:
    # -P: a directory in which somebody works may hold a folder `tessera`.
    program = shlex.join([sys.executable, "-P", "-m", "tessera.cli", "slurm", file.name])
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    partial.write_text(f'#!/bin/sh\n{_MARK}\nexec {program} "$@"\n')
    partial.chmod(0o755)
    partial.replace(file)
