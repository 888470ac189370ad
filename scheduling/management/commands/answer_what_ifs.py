"""Command ``manage.py answer_what_ifs``: compute queued what-ifs, then missing audits."""

import os
import signal
import threading
from argparse import ArgumentParser
from typing import Any, Final, NoReturn

from django.conf import settings
from django.core.management.base import BaseCommand

from scheduling.storage.opening import open_storage
from scheduling.what_if.services.promises import audit_missing_days
from scheduling.what_if.services.what_if import answer_what_if, next_what_if
from tenants.clock import database_now

NICENESS: Final = 10
LOOK_SECONDS: Final = 1.0


class Command(BaseCommand):
    """Compute what-ifs until none waits, then audits of the sharing promise of past days."""

    help = "Run queued what-ifs, then missing audits of past days, unless another process does."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the option to exit together with the parent process."""
        parser.add_argument(
            "--with-parent",
            action="store_true",
            help="for a worker: run with lower CPU priority, and exit when the worker exits",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Compute queued what-ifs, oldest first, then missing audits."""
        if options["with_parent"]:
            os.nice(NICENESS)
            signal.signal(signal.SIGTERM, _end)
            threading.Thread(target=_follow, args=(os.getppid(),), daemon=True).start()
        answered, storage = 0, open_storage(settings.TESSERA.storage)
        while (pk := next_what_if(now=database_now())) is not None:
            if not answer_what_if(pk=pk, storage=storage, now=database_now()):
                break
            answered += 1
        audits = audit_missing_days(storage=storage, now=database_now())
        self.stdout.write(f"{answered} answered, {audits} audits")


def _end(*_: object) -> NoReturn:
    raise SystemExit(128 + signal.SIGTERM)


def _follow(parent: int) -> None:
    """Terminate this process when its parent process changes."""
    pause = threading.Event()
    while not pause.wait(LOOK_SECONDS):
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)
            return
