"""``manage.py join_token``: creates a one-time token for a further control host."""

import base64
import os
from argparse import ArgumentParser
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final
from urllib.parse import urlsplit

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from portal.settings.environment import KNOWN, SECRETS, TesseraSettings
from tenants.audit import Actor
from tenants.clock import database_now
from tenants.keyring import UnreadableKeyError, seal_secrets
from tenants.services.joining import LONGEST, SHORTEST, issue_bundle
from workers.redis_address import sentinel_master

OF_ONE_HOST: Final = frozenset({"TESSERA_DATA_DIR", "TESSERA_ADMIN_PASSWORD"})
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1", ""})


class Command(BaseCommand):
    """Encrypt the environment of this host for another one, and print the token once."""

    help = (
        "Create a one-time token for `tessera join` on a further control host. Run the command "
        "with the environment of the portal's processes."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the lifetime of the token."""
        parser.add_argument(
            "--minutes",
            type=float,
            default=30.0,
            help="lifetime of the token (default %(default)g)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the token, which is not stored."""
        lifetime = timedelta(minutes=options["minutes"])
        if not SHORTEST <= lifetime <= LONGEST:
            raise CommandError("--minutes must be between 1 and 1440")
        _check_shared(settings.TESSERA)
        try:
            content = environment_file(os.environ, settings.TESSERA, seal_secrets()[0])
        except UnreadableKeyError as error:
            raise CommandError(str(error)) from None
        actor = Actor.system("manage.py join_token")
        self.stdout.write(
            issue_bundle(content, lifetime=lifetime, now=database_now(), actor=actor)
        )


def environment_file(environ: Mapping[str, str], known: TesseraSettings, seal: str) -> str:
    """Return the lines of an environment file for a further host.

    Args:
        environ: the environment of this host.
        known: its settings, with the content of files of secrets.
        seal: its seal secret.
    """
    files = {f"{name}_FILE" for name in SECRETS}
    found = {
        name: environ[name] for name in sorted(KNOWN - OF_ONE_HOST - files) if environ.get(name)
    }
    if known.secret_key:
        found["TESSERA_SECRET_KEY"] = known.secret_key
    if known.ssh_keys:
        found["TESSERA_SSH_KEY"] = base64.b64encode(known.ssh_keys[0].encode()).decode()
    if seal != known.secret_key:
        found["TESSERA_SEAL_SECRET"] = seal
    return "".join(f"{name}={_quoted(value)}\n" for name, value in sorted(found.items()))


def _quoted(value: str) -> str:
    """Quote a value for systemd and shells."""
    if value.replace("_", "").isalnum():
        return value
    escaped = (
        value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$").replace("`", "\\`")
    )
    return f'"{escaped}"'


def _host_of(url: str) -> str:
    """Return the host of a plain address; empty for a socket."""
    return urlsplit(url).hostname or ""


def _check_shared(known: TesseraSettings) -> None:
    """Refuse databases and brokers that another host cannot reach."""
    if known.database_url.startswith("sqlite"):
        raise CommandError("several hosts need PostgreSQL: set TESSERA_DATABASE_URL")
    master = sentinel_master(known.redis_url)
    hosts = [host for host, _ in master.sentinels] if master else [_host_of(known.redis_url)]
    if LOOPBACK & set(hosts):
        raise CommandError("another host cannot reach the address in TESSERA_REDIS_URL")
