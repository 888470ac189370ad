"""``manage.py rotate_secret_key``: replaces the secret key without a pause."""

import time
from argparse import ArgumentParser
from datetime import datetime
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from portal.key_rotation import rotate_secret_key
from portal.supervisor.files import DataDir
from scheduling.maintenance.resealing import Resealed, count_outdated, reseal_all
from tenants.audit import Actor
from tenants.clock import database_now
from tenants.keyring import UnreadableKeyError
from tenants.services.keys import drop_old_secret_keys, reseal_keys

ACTOR = Actor.system("manage.py rotate_secret_key")


class Command(BaseCommand):
    """Rotate the secret key; an interrupted rotation continues with the next call."""

    help = (
        "Replace the secret key while all processes run. Sessions, tokens and job secrets remain "
        "valid. If the key comes from the environment, encrypt stored secrets with it."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the option for a key that others may know."""
        parser.add_argument(
            "--drop-old",
            action="store_true",
            help="then reject values of earlier keys at once: everyone must sign in again",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Rotate the key, and report the changed rows and files."""
        try:
            self._rotate()
            if options["drop_old"]:
                self._drop_old()
        except UnreadableKeyError as error:
            raise CommandError(str(error)) from None

    def _rotate(self) -> None:
        environment = settings.TESSERA
        if environment.secret_key:
            # The environment has the keys in their order; only stored values remain to be changed.
            self._report(reseal_all(), reseal_keys())
            return
        done = rotate_secret_key(actor=ACTOR, wait_until=self._wait_until)
        DataDir(root=environment.data_dir).secret_key.unlink(missing_ok=True)
        if done.is_resumed:
            self.stdout.write("completed an interrupted rotation; run the command again to rotate")
        self._report(done.values, done.keys)

    def _report(self, values: Resealed, keys: int) -> None:
        self.stdout.write(f"encrypted {values.changed} secrets and {keys} keys with the new key")
        if values.unreadable:
            self.stdout.write(
                f"{values.unreadable} secrets were encrypted with an unknown key; enter them again"
            )

    def _drop_old(self) -> None:
        if count_outdated():
            raise CommandError("some secrets still need an earlier key; no key was dropped")
        gone = drop_old_secret_keys(before=database_now(), actor=ACTOR)
        self.stdout.write(f"dropped {gone} earlier keys")

    def _wait_until(self, at: datetime) -> None:
        left = (at - database_now()).total_seconds()
        if left > 0:
            self.stdout.write(f"waits {left:.0f} s until every process has read the keys")
            self.stdout.flush()
        while (left := (at - database_now()).total_seconds()) > 0:
            time.sleep(min(left, 1.0))
