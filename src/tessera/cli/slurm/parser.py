"""How Slurm's commands read their options, and say which they take."""

import argparse
from typing import Any, NoReturn

from tessera.cli.exits import UsageError


class Parser(argparse.ArgumentParser):
    """Says what is wrong as the other commands do; ``-h`` is not always its help."""

    def __init__(self, prog: str, says: str, *, short_help: bool = True) -> None:
        """Take ``--help``, and ``-h`` where Slurm's command has no other meaning for it."""
        super().__init__(prog=f"tessera slurm {prog}", description=says, add_help=False)
        names = ("-h", "--help") if short_help else ("--help",)
        self.add_argument(*names, action="help", help="Show this message and exit.")

    def option(self, *names: str, says: str, **more: Any) -> None:
        """Take an option that is a word, or a flag where ``more`` says so."""
        self.add_argument(*names, help=says, **({"default": "", "metavar": "X"} | more))

    def flag(self, *names: str, says: str) -> None:
        """Take an option without a value."""
        self.add_argument(*names, help=says, action="store_true")

    def error(self, message: str) -> NoReturn:
        """End by what is wrong, as the command line's other faults do."""
        raise UsageError(f"{self.prog.removeprefix('tessera slurm ')}: {message}")
