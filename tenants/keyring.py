"""The keys of the installation: from the environment, sealed in the database, or in files.

A process reads the keys when it first needs them, and again every ``REFRESH_SECONDS``. A change of
keys therefore reaches every process within that time, without a restart.
"""

import hashlib
import hmac
import logging
import os
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as LateError
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.fernet import InvalidToken
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
)
from django.conf import settings
from django.db import Error as DatabaseFault
from django.db import OperationalError, ProgrammingError, connection

from tenants.sealing import sealer

if TYPE_CHECKING:
    from tenants.models import InstallationKey

log = logging.getLogger(__name__)

REFRESH_SECONDS: Final = 5.0
SPREAD: Final = timedelta(seconds=3 * REFRESH_SECONDS)
"""Time after which every process knows a change of the keys."""
PATIENCE_SECONDS: Final = 1.0
FIRST_SECONDS: Final = 30.0
PURPOSE: Final = "tessera.installation-keys.1"
SEAL_FILE: Final = "seal_secret"
SECRET_KEY_FILE: Final = "secret_key"  # noqa: S105 name of a file
SSH_KEY_FILE: Final = "ssh/id_ed25519"


class UnreadableKeyError(Exception):
    """A key cannot be read: the seal secret is another one, or the key is not valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SshKey:
    """A key pair with which the control plane signs in at nodes.

    Attributes:
        private: in OpenSSH's or PEM format.
        public: type and key, as in ``authorized_keys``, without options and comment.
    """

    private: str = field(repr=False)
    public: str

    @classmethod
    def generate(cls) -> "SshKey":
        """Generate an Ed25519 key."""
        made = Ed25519PrivateKey.generate()
        text = made.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        return cls.of(text.decode())

    @classmethod
    def of(cls, private: str) -> "SshKey":
        """Derive the public key.

        Raises:
            UnreadableKeyError: the text is not an unencrypted private key.
        """
        # Earlier versions accepted PEM files of admins; asyncssh reads both formats.
        is_openssh = "BEGIN OPENSSH PRIVATE KEY" in private
        load = load_ssh_private_key if is_openssh else load_pem_private_key
        try:
            key = load(private.encode(), None)
            line = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise UnreadableKeyError(
                "an SSH key is not an unencrypted private key in OpenSSH's or PEM format"
            ) from None
        return cls(private=private, public=line.decode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyring:
    """All keys at one instant.

    Attributes:
        secret_key: Django's signing key; also encrypts job secrets. Empty before ``set_up``.
        next_keys: keys that processes accept but do not use yet.
        old_keys: keys that processes still accept; the newest one first.
        ssh_keys: keys of the control plane; the current one first.
        installation: identifies runs and checkpoints of this installation on nodes.
    """

    secret_key: str = field(default="", repr=False)
    next_keys: tuple[str, ...] = field(default=(), repr=False)
    old_keys: tuple[str, ...] = field(default=(), repr=False)
    ssh_keys: tuple[SshKey, ...] = ()
    installation: str = ""


def current_keyring() -> Keyring:
    """Return the keys of this process, at most some seconds old.

    If the database does not respond within a second, the keys of the last read are returned.

    Raises:
        UnreadableKeyError: the seal secret of this host does not decrypt the keys.
        OperationalError: the keys were never read, and the database is unreachable.
    """
    return _cache.read()


def secret_keys() -> tuple[str, ...]:
    """Return Django's secret keys: the one in use first, then the others that are accepted.

    Raises:
        UnreadableKeyError: there is no key yet.
    """
    if isinstance(settings.SECRET_KEY, str):
        return (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    # One reading of the keys: between two, a rotation could hide the key that a value needs.
    found = current_keyring()
    return (_required(found), *found.next_keys, *found.old_keys)


def digest_key() -> str:
    """Return the oldest accepted secret key, which keys the digests in the database.

    A rotation does not change it, so stored digests remain comparable until the old key is
    dropped.
    """
    if isinstance(settings.SECRET_KEY, str):
        return (settings.SECRET_KEY, *settings.TESSERA.secret_key_fallbacks)[-1]
    found = current_keyring()
    return (found.secret_key, *found.old_keys)[-1]


def installation_id(secret_key: str) -> str:
    """Derive a name for the installation that does not reveal its key."""
    digest = hmac.new(secret_key.encode(), b"tessera.installation.1", hashlib.sha256)
    return digest.hexdigest()[:16]


def _required(found: Keyring) -> str:
    if not found.secret_key:
        raise UnreadableKeyError("the installation has no secret key yet; run set_up")
    return found.secret_key


class StoredSecretKey:
    """Django's ``SECRET_KEY``, read at each use, so that a rotation needs no restart."""

    def __str__(self) -> str:
        return _required(current_keyring())

    def __repr__(self) -> str:
        return "StoredSecretKey()"


class StoredFallbacks(tuple[str, ...]):
    """Django's ``SECRET_KEY_FALLBACKS``, read at each use; Django requires a tuple.

    They include the current key: Django reads ``SECRET_KEY`` separately, and a rotation between
    the two reads would otherwise hide the key of most signatures.
    """

    __slots__ = ()

    def __iter__(self) -> Iterator[str]:
        found = current_keyring()
        return iter((*found.next_keys, *filter(None, (found.secret_key,)), *found.old_keys))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return "StoredFallbacks()"


def seal_secrets() -> tuple[str, ...]:
    """Return the secrets that seal the keys in the database; the one in use first.

    Without ``TESSERA_SEAL_SECRET`` and without its file, the secret key of the environment seals.

    Raises:
        UnreadableKeyError: this host has no seal secret.
    """
    environment = settings.TESSERA
    found = environment.seal_secret or _read(environment.data_dir / SEAL_FILE)
    if found:
        return (found,)
    if environment.secret_key:
        given = (environment.secret_key_next, environment.secret_key_fallbacks)
        return (environment.secret_key, *given[0], *given[1])
    raise UnreadableKeyError(
        "this host has no seal secret: set TESSERA_SEAL_SECRET as on the other hosts, "
        "or run `tessera join`"
    )


def load_keyring() -> Keyring:
    """Read all keys: the environment before the database, the database before files."""
    environment = settings.TESSERA
    rows = _rows()
    found = _secret_keys(rows)
    ssh = _ssh_keys(rows)
    first = (found[0], *found[2])[-1]
    installation = next((row.public for row in rows if row.kind == "installation"), "")
    if not installation and first:
        installation = installation_id(first)
    log.debug("read %d keys of %s", len(rows), environment.data_dir)
    return Keyring(
        secret_key=found[0],
        next_keys=found[1],
        old_keys=found[2],
        ssh_keys=ssh,
        installation=installation or secrets.token_hex(8),
    )


def _secret_keys(
    rows: "Sequence[InstallationKey]",
) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Return the key in use, those that are not in use yet, and the old ones."""
    environment = settings.TESSERA
    if environment.secret_key:
        fallbacks = environment.secret_key_fallbacks
        return environment.secret_key, environment.secret_key_next, fallbacks
    mine = [row for row in rows if row.kind == "secret"]
    if not mine:
        return _read(environment.data_dir / SECRET_KEY_FILE), (), ()
    by_state = {
        state: tuple(_unsealed(row) for row in mine if row.state == state)
        for state in ("current", "next", "old")
    }
    return by_state["current"][0], by_state["next"], by_state["old"]


def _ssh_keys(rows: "Sequence[InstallationKey]") -> tuple[SshKey, ...]:
    environment = settings.TESSERA
    stored = [
        SshKey(private=_unsealed(row), public=row.public)
        for state in ("current", "old")
        for row in rows
        if (row.kind, row.state) == ("ssh", state)
    ]
    given = [SshKey.of(text) for text in environment.ssh_keys]
    if not stored and not given:
        text = _read(environment.data_dir / SSH_KEY_FILE)
        given = [SshKey.of(text + "\n")] if text else []
    found = {key.public: key for key in (*given, *stored)}
    return tuple(found.values())


def _unsealed(row: "InstallationKey") -> str:
    try:
        return sealer(PURPOSE, seal_secrets()).decrypt(bytes(row.sealed)).decode()
    except InvalidToken:
        raise UnreadableKeyError(
            "the seal secret of this host does not decrypt the keys in the database: set "
            "TESSERA_SEAL_SECRET as on the other hosts, or run `tessera join`"
        ) from None


def _rows() -> "list[InstallationKey]":
    from tenants.models import InstallationKey  # noqa: PLC0415 settings import this module

    try:
        return list(InstallationKey.objects.order_by("-id"))
    except (OperationalError, ProgrammingError):
        # Before its first migration, an installation has only files.
        if InstallationKey._meta.db_table in connection.introspection.table_names():
            raise
        return []


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8").strip()
    except OSError:
        return ""


class _Cache:
    """The keys of this process. A thread with its own connection reads them.

    So a read joins no transaction of the caller, and an unreachable database delays the caller
    by at most ``PATIENCE_SECONDS``.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Discard the keys and the thread, which a forked process does not have."""
        self._lock = threading.Lock()
        self._keyring: Keyring | None = None
        self._read_at = float("-inf")
        self._tried_at = float("-inf")
        self._reading: Future[Keyring] | None = None
        self._thread: ThreadPoolExecutor | None = None

    def read(self) -> Keyring:
        known = self._keyring
        now = time.monotonic()
        if known is not None and now - max(self._read_at, self._tried_at) < REFRESH_SECONDS:
            return known
        reading = self._begin()
        try:
            found = reading.result(FIRST_SECONDS if known is None else PATIENCE_SECONDS)
        except (LateError, DatabaseFault, UnreadableKeyError) as error:
            self._tried_at = time.monotonic()
            if known is not None:
                log.warning("the keys could not be read again: %s", error or "no response")
                return known
            if isinstance(error, LateError):
                raise OperationalError("the database does not respond") from None
            raise
        self._keyring, self._read_at = found, time.monotonic()
        return found

    def _begin(self) -> "Future[Keyring]":
        with self._lock:
            if self._reading is None or self._reading.done():
                self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="keys")
                self._reading = self._thread.submit(_load_and_close)
            return self._reading


def _load_and_close() -> Keyring:
    try:
        return load_keyring()
    finally:
        with suppress(DatabaseFault):
            connection.close()


_cache: Final = _Cache()
os.register_at_fork(after_in_child=_cache.forget)


def forget_keys() -> None:
    """Read the keys again at their next use, after this process has changed them."""
    _cache.forget()
