"""``manage.py migrate_storage``: copies logs, stored rounds and archives to another storage."""

import os
import time
from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any, Final

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from portal.settings.environment_values import SettingsError, storage_config
from scheduling.storage.base import FileStorage
from scheduling.storage.config import StorageConfig
from scheduling.storage.moving import CopyDamagedError, MoveProgress, StorageMove
from scheduling.storage.opening import open_storage

MOST_PASSES: Final = 50
SPOOL_SECONDS: Final = 60.0
EVERY_SECONDS: Final = 2.0
MIB: Final = 1 << 20


class Command(BaseCommand):
    """Copy everything while jobs run; the source is not changed. Can be repeated at any time."""

    help = (
        "Copy logs, stored rounds and archives from one storage to another, and compare the "
        "hashes of all copies. Jobs continue. Repeat the command after an interruption, and "
        "after all hosts use the new storage."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add source, target and the comparison of all files."""
        place = "directory, directory:///PATH or s3://BUCKET/PREFIX"
        parser.add_argument("--from", dest="source", required=True, metavar="PLACE", help=place)
        parser.add_argument("--to", dest="target", required=True, metavar="PLACE", help=place)
        parser.add_argument(
            "--verify", action="store_true", help="compare the hashes of existing files, too"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run passes until one copies nothing."""
        configs = self._config(options["source"]), self._config(options["target"])
        if configs[0] == configs[1]:
            raise CommandError("--from and --to are the same storage")
        source, target = (open_storage(config) for config in configs)
        try:
            self._wait_for_spool(source)
            self._copy(source, target, verifies_all=options["verify"])
        except (CopyDamagedError, OSError) as error:
            raise CommandError(f"{error}; run the command again to continue") from error

    def _config(self, place: str) -> StorageConfig:
        try:
            return storage_config(place, os.environ, settings.TESSERA.data_dir)
        except SettingsError as error:
            raise CommandError(str(error)) from error

    def _wait_for_spool(self, source: FileStorage) -> None:
        source.store_spooled()
        deadline = time.monotonic() + SPOOL_SECONDS
        while source.state().spooled_bytes:
            if time.monotonic() > deadline:
                raise CommandError(
                    "this host has spooled files that the source does not have; retry when the "
                    "source responds"
                )
            time.sleep(1.0)

    def _copy(self, source: FileStorage, target: FileStorage, *, verifies_all: bool) -> None:
        for number in range(1, MOST_PASSES + 1):
            move = StorageMove(
                source, target, report=self._reporter(number), verifies_all=verifies_all
            )
            done = move.run()
            self._say(number, done)
            if not done.copied:
                self.stdout.write(
                    f"{target.label} has all files of {source.label}. Set TESSERA_STORAGE on all "
                    "hosts, restart their processes, and run this command once more."
                )
                return
            verifies_all = False
        raise CommandError("files are written faster than they are copied; run the command again")

    def _reporter(self, number: int) -> Callable[[MoveProgress], None]:
        """Return a function that prints the progress at most once in 2 s."""
        due = time.monotonic() + EVERY_SECONDS

        def report(done: MoveProgress) -> None:
            nonlocal due
            if time.monotonic() >= due:
                due = time.monotonic() + EVERY_SECONDS
                self._say(number, done)

        return report

    def _say(self, number: int, done: MoveProgress) -> None:
        self.stdout.write(
            f"pass {number}: {done.seen:,} files and logs compared, {done.copied:,} copied "
            f"({done.copied_bytes / MIB:,.1f} MiB)"
            + (f", {done.verified:,} existing ones verified" if done.verified else "")
        )
        self.stdout.flush()
