"""``manage.py rotate_node_key``: replaces the SSH key on all nodes without a pause."""

import time
from argparse import ArgumentParser
from typing import Any, Final

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from portal.supervisor.files import DataDir
from tenants.audit import Actor
from tenants.clock import database_now
from tenants.keyring import SshKey, UnreadableKeyError, load_keyring
from tenants.services.keys import replace_ssh_key
from workers.services.node_keys import drop_replaced_keys, pending_nodes

LOOK_EVERY: Final = 1.0
ACTOR: Final = Actor.system("manage.py rotate_node_key")


class Command(BaseCommand):
    """Generate a key; node services put it on every node and remove the old one."""

    help = (
        "Replace the SSH key of the control plane on all nodes. Running jobs continue. Nodes that "
        "do not respond get the new key when they return."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the time limit and the option that only reports."""
        parser.add_argument(
            "--wait",
            type=float,
            default=120.0,
            metavar="SECONDS",
            help="maximum time to wait for the nodes (default %(default)g)",
        )
        parser.add_argument(
            "--status", action="store_true", help="only show the nodes without the new key"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Begin a rotation, or continue to wait for one in progress."""
        try:
            if not options["status"]:
                self._begin()
            self._wait(0.0 if options["status"] else options["wait"])
        except UnreadableKeyError as error:
            raise CommandError(str(error)) from None

    def _begin(self) -> None:
        if settings.TESSERA.ssh_keys:
            raise CommandError(
                "the SSH key is in the environment: add the new key to TESSERA_SSH_KEY_FALLBACKS "
                "on all hosts and restart their processes; then exchange it with TESSERA_SSH_KEY "
                "on each host, restart again, and run this command with --status"
            )
        new = SshKey.generate()
        if replace_ssh_key(new, now=database_now(), actor=ACTOR):
            self.stdout.write(f"new key: {new.public}")
        else:
            self.stdout.write("a rotation is in progress; no new key was created")
        data = DataDir(root=settings.TESSERA.data_dir)
        data.client_key.unlink(missing_ok=True)
        data.show_public_key(load_keyring().ssh_keys[0])

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while True:
            keys = load_keyring().ssh_keys
            if len(keys) < 2 or drop_replaced_keys(keys):
                self.stdout.write("every node has the current key")
                return
            pending = pending_nodes(keys[0].public)
            if time.monotonic() >= deadline:
                break
            time.sleep(LOOK_EVERY)
        self.stdout.write(f"{len(pending)} nodes do not have the new key yet:")
        for node in pending:
            self.stdout.write(f"  {node.name} ({node.contact}) {node.cause}".rstrip())
        self.stdout.write("node services replace the key when these nodes respond")
