"""Command ``manage.py answer_what_ifs``: compute queued what-ifs, one by one."""

import os
import signal
import threading
from argparse import ArgumentParser
from pathlib import Path
from typing import Any, Final, NoReturn

from django.conf import settings
from django.core.management.base import BaseCommand

from scheduling.what_if.services.what_if import answer_what_if, next_what_if
from tenants.clock import database_now

NICENESS: Final = 10
LOOK_SECONDS: Final = 1.0


class Command(BaseCommand):
    """Compute what-ifs until none waits, or until another process computes them."""

    help = "Run queued what-ifs until the queue is empty or another process runs them."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the option to exit together with the parent process."""
        parser.add_argument(
            "--with-parent",
            action="store_true",
            help="for a worker: run with lower CPU priority, and exit when the worker exits",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Compute queued what-ifs, oldest first."""
        if options["with_parent"]:
            os.nice(NICENESS)
            signal.signal(signal.SIGTERM, _end)
            threading.Thread(target=_follow, args=(os.getppid(),), daemon=True).start()
        answered = 0
        while (pk := next_what_if(now=database_now())) is not None:
            data_dir = Path(settings.TESSERA.data_dir)
            if not answer_what_if(pk=pk, data_dir=data_dir, now=database_now()):
                break
            answered += 1
        self.stdout.write(f"{answered} answered")


def _end(*_: object) -> NoReturn:
    raise SystemExit(128 + signal.SIGTERM)


def _follow(parent: int) -> None:
    """Ask this process to end as soon as its parent is another one."""
    pause = threading.Event()
    while not pause.wait(LOOK_SECONDS):
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)
            return
