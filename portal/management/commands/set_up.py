"""``manage.py set_up``: schema, keys, first admin, and optional content of an installation."""

import json
import time
from argparse import ArgumentParser
from pathlib import Path
from secrets import token_urlsafe
from typing import Any, Final

from django.conf import settings
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import transaction
from django.utils.module_loading import import_string

from portal.supervisor.files import DataDir, write_private
from portal.supervisor.startup import CONTENT_SECONDS
from scheduling import ports
from scheduling.clusters.services.priority_classes import make_usual_classes
from tenants import services
from tenants.audit import record
from tenants.clock import database_now
from tenants.keyring import SshKey, UnreadableKeyError, load_keyring
from tenants.models import InstallationKey, User
from tenants.services.keys import store_first_key
from tenants.viewers import Viewer

ORDER_SECONDS: Final = 2 * CONTENT_SECONDS
"""Timeout of the order, which comes when the programs that the content needs are ready."""


class Command(BaseCommand):
    """Prepare an installation before ``tessera up`` starts it; idempotent."""

    # Checks load all pages and REST, which would delay the start.
    requires_system_checks: list[str] = []  # noqa: RUF012 (as the base class declares it)
    help = (
        "Migrate the database and create the keys; for `tessera up` also the first admin and "
        "content."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options for the files that exchange passwords with the supervisor."""
        parser.add_argument(
            "--order",
            type=Path,
            help=(
                "JSON file with the requested admin and content; may be written after the start"
            ),
        )
        parser.add_argument(
            "--answer", type=Path, help=("JSON file to which the created accounts are written")
        )

    def handle(self, *, order: Path | None, answer: Path | None, **_: Any) -> None:
        """Migrate the database and create missing content."""
        if (order is None) != (answer is None):
            raise CommandError("--order and --answer must be used together")
        environment = settings.TESSERA
        data = DataDir(root=environment.data_dir)
        data.prepare(with_keys=not (environment.seal_secret or environment.secret_key))
        call_command("migrate", verbosity=1, interactive=False, stdout=self.stdout)
        _store_keys(data)
        _furnish()
        if order is not None and answer is not None:
            write_private(answer, json.dumps({"logins": _carry_out(order)}))
        # The broker queues the message, so the first worker decides a round without delay.
        ports.bound().rounds.request("start")


def _store_keys(data: DataDir) -> None:
    """Seal the keys in the database if it has none: those of files, or new ones.

    The files remain for processes of the previous version, until a rotation replaces the keys.
    """
    environment, now = settings.TESSERA, database_now()
    try:
        found = load_keyring()
        if not environment.secret_key:
            private = found.secret_key or token_urlsafe(50)
            store_first_key(InstallationKey.Kind.SECRET, private=private, now=now)
        if not environment.ssh_keys:
            key = (found.ssh_keys or (SshKey.generate(),))[0]
            store_first_key(
                InstallationKey.Kind.SSH, private=key.private, public=key.public, now=now
            )
        found = load_keyring()
        store_first_key(
            InstallationKey.Kind.INSTALLATION, private="", public=found.installation, now=now
        )
    except UnreadableKeyError as error:
        raise CommandError(str(error)) from None
    data.show_public_key(found.ssh_keys[0])


def _furnish() -> None:
    """Create the usual priority classes in a new installation.

    An installation is new if it has no user; in others, an admin may have deleted a class.
    """
    if not User.objects.exists():
        make_usual_classes(viewer=Viewer.system("set_up"))


def _carry_out(order: Path) -> dict[str, str]:
    """Create the admin and the requested content; return the password of each new user by name."""
    deadline = time.monotonic() + ORDER_SECONDS
    while not order.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    try:
        wanted = json.loads(order.read_text())
    except (OSError, ValueError) as error:
        raise CommandError(f"--order {order} cannot be read: {error}") from error
    logins = ensure_admin(password=wanted["admin_password"], is_chosen=wanted["is_chosen"])
    content = wanted["content"]
    if content:
        logins |= import_string(content["create"])(Path(content["source"]))
    return logins


ADMIN = "admin"


@transaction.atomic
def ensure_admin(*, password: str, is_chosen: bool) -> dict[str, str]:
    """Create the user ``admin`` if it does not exist; set a chosen password in any case.

    The person who starts the portal owns its data, so a weak password only prints a warning.

    Args:
        password: the password to set.
        is_chosen: whether a person chose the password; a random one is set for a new admin only.

    Returns:
        The password by user name, if the user is new and the password random; else empty.
    """
    viewer = Viewer.system("tessera up")
    user = User.objects.filter(username=ADMIN).first()
    is_new = user is None
    if user is None:
        user = services.create_user(viewer=viewer, username=ADMIN, is_cluster_admin=True)
    if (is_new or is_chosen) and not user.check_password(password):
        _warn_if_weak(password, user)
        user.set_password(password)
        user.save(update_fields=["password"])
        record(actor=viewer, action="user.set_password", obj=user)
    return {ADMIN: password} if is_new and not is_chosen else {}


def _warn_if_weak(password: str, user: User) -> None:
    try:
        validate_password(password, user)
    except ValidationError as error:
        print(f"warning: the admin's password is weak: {' '.join(error.messages)}")
