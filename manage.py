#!/usr/bin/env python
"""Django's command line for Tessera, usable from a clean clone without installing the project."""

import os
import sys
from pathlib import Path


def main() -> None:
    """Run a management command with this checkout's packages."""
    sys.path.insert(0, str(Path(__file__).resolve().parent / "src"))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
    # Small matrices gain nothing from threads, which only wait for one another.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from django.core.management import execute_from_command_line  # noqa: PLC0415 after the path

    try:
        execute_from_command_line(sys.argv)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output has ended, as in `| head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


if __name__ == "__main__":
    main()
