"""The process's environment, read once into one frozen value and validated."""

import base64
import ipaddress
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from portal.settings.backends import IDLE_SECONDS, is_mail_url
from scheduling.storage.config import MOST_SPOOL_BYTES, StorageConfig, parse_place
from tessera.isolation import RESERVED_UIDS
from workers.redis_address import InvalidRedisAddressError, sentinel_master

PROJECT_ROOT: Final = Path(__file__).resolve().parent.parent.parent

MAX_UID: Final = 1 << 31
"""Some programs read a user id above this limit as a negative number."""

IGNORED: Final = frozenset({"TESSERA_SHARED", "TESSERA_URL", "TESSERA_TOKEN"})
_HOST: Final = r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?(?::[0-9]{1,5})?"
_MIRROR: Final = re.compile(rf"({_HOST})=({_HOST}(?:/[a-z0-9][a-z0-9._-]*)*)")
IGNORED_PREFIX: Final = "TESSERA_JOB_"


class SettingsError(ValueError):
    """An environment variable is unknown or has a value that cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TesseraSettings:
    """All settings from the environment.

    Attributes:
        data_dir: directory of the database (SQLite), logs, rounds, uploads and keys.
        database_url: ``sqlite:///path`` or ``postgres://...``.
        database_idle_seconds: idle time after which PostgreSQL ends a transaction.
        redis_url: address of the broker (``workers.redis_address``).
        secret_key: Django's signing key, which also derives the key that encrypts job secrets;
            if empty, it is read from the database or a file (``tenants.keyring``).
        secret_key_next: keys that are accepted, but not used yet.
        secret_key_fallbacks: earlier keys that are still accepted.
        seal_secret: encrypts the keys in the database; if empty, it is in a file.
        ssh_keys: private keys for nodes; the current one first. If empty, they are read from the
            database or a file.
        allowed_hosts: host names to which the portal responds.
        round_seconds: seconds between two scheduling rounds when nothing happens.
        images: ``required`` or ``ignore``: policy for jobs with an image on nodes without
            a container engine.
        defragmentation: ``off``, ``propose`` or ``carry-out``: what happens with moves of jobs
            that make room for larger ones.
        host_network: ``gangs`` or ``never``: whether a gang of several instances may use the
            network of its nodes.
        local_images: prefixes of images that are local to nodes, without a registry.
        registry_mirrors: mirror of each registry that has one, by host.
        https: people use HTTPS, so cookies are restricted to it.
        debug: Django's debug mode.
        keep_days: retention in days by name, where set; negative: for ever.
        keep_round_bytes: size of all round snapshots together, if set.
        lease_seconds: time for which a run continues without contact with the control plane.
        log_cap_bytes: size limit of each member's log.
        archive_bytes: limit of all uploaded archives of a tenant.
        disk_bytes: limit for the run directory and checkpoints of a job on a node; 0 for none.
        checkpoint_bytes: largest checkpoint that is copied between nodes.
        checkpoint_seconds: time limit of this copy.
        tenant_uids: first and last of the Unix user ids that tenants get on nodes.
        email_url: address of the mail server; mail is off if empty.
        email_from: sender of mail.
        public_url: address of the portal for links in mail; no links if empty.
        hook_networks: private networks allowed for webhooks, separated by commas.
        trusted_proxies: addresses and networks whose ``X-Forwarded-*`` headers are read.
        object_store: storage of logs, rounds and archives if it is not the data directory.
    """

    data_dir: Path
    database_url: str
    database_idle_seconds: float
    redis_url: str
    secret_key: str = field(repr=False)
    secret_key_next: tuple[str, ...] = field(repr=False)
    secret_key_fallbacks: tuple[str, ...] = field(repr=False)
    seal_secret: str = field(repr=False)
    ssh_keys: tuple[str, ...] = field(repr=False)
    allowed_hosts: tuple[str, ...]
    round_seconds: float
    images: str
    defragmentation: str
    host_network: str
    local_images: tuple[str, ...]
    registry_mirrors: Mapping[str, str]
    https: bool
    debug: bool
    keep_days: Mapping[str, float]
    keep_round_bytes: int | None
    lease_seconds: float
    log_cap_bytes: int
    archive_bytes: int
    disk_bytes: int
    checkpoint_bytes: int
    checkpoint_seconds: float
    tenant_uids: tuple[int, int]
    email_url: str
    email_from: str
    public_url: str
    hook_networks: str
    trusted_proxies: tuple[str, ...]
    object_store: StorageConfig | None = None

    @property
    def storage(self) -> StorageConfig:
        """Return the storage of logs, rounds and archives: the data directory by default."""
        return self.object_store or StorageConfig(data_dir=self.data_dir)

    @property
    def trusted_origins(self) -> tuple[str, ...]:
        """Return origins of forms behind a proxy that ends TLS; empty without HTTPS."""
        if not self.https:
            return ()
        hosts = (f"*{host}" if host.startswith(".") else host for host in self.allowed_hosts)
        return tuple(f"https://{host}" for host in hosts if host != "*")


KEPT: Final = (
    *(
        "round_files",
        "rounds",
        "events",
        "jobs",
        "usage_jobs",
        "shared_minutes",
        "fleet",
        "archives",
        "audit",
    ),
    *("logs", "goodput"),
)
SECRETS: Final = ("TESSERA_SECRET_KEY", "TESSERA_SEAL_SECRET", "TESSERA_SSH_KEY")
"""Variables that may be in a file instead, which ``NAME_FILE`` names."""
MOST_SECRET_BYTES: Final = 16 << 10
LEAST_SECRET: Final = 32
_KEEP_NAMES: Final = {f"TESSERA_KEEP_{name.upper()}_DAYS": name for name in KEPT}

KNOWN: Final = frozenset(
    {
        *_KEEP_NAMES,
        "TESSERA_KEEP_ROUND_BYTES",
        "TESSERA_ARCHIVE_BYTES",
        "TESSERA_DISK_BYTES",
        "TESSERA_CHECKPOINT_BYTES",
        "TESSERA_CHECKPOINT_SECONDS",
        "TESSERA_TENANT_UIDS",
        "TESSERA_LEASE_SECONDS",
        "TESSERA_LOG_CAP_BYTES",
        "TESSERA_DATABASE_URL",
        "TESSERA_DATABASE_IDLE_SECONDS",
        "TESSERA_REDIS_URL",
        "TESSERA_SECRET_KEY",
        "TESSERA_SECRET_KEY_NEXT",
        "TESSERA_SECRET_KEY_FALLBACKS",
        "TESSERA_SEAL_SECRET",
        "TESSERA_SSH_KEY",
        "TESSERA_SSH_KEY_FALLBACKS",
        *(f"{name}_FILE" for name in SECRETS),
        "TESSERA_ALLOWED_HOSTS",
        "TESSERA_ROUND_SECONDS",
        "TESSERA_DATA_DIR",
        "TESSERA_ADMIN_PASSWORD",
        "TESSERA_IMAGES",
        "TESSERA_HOST_NETWORK",
        "TESSERA_LOCAL_IMAGES",
        "TESSERA_REGISTRY_MIRRORS",
        "TESSERA_HTTPS",
        "TESSERA_DEBUG",
        "TESSERA_EMAIL_URL",
        "TESSERA_EMAIL_FROM",
        "TESSERA_PUBLIC_URL",
        "TESSERA_HOOK_NETWORKS",
        "TESSERA_TRUSTED_PROXIES",
        "TESSERA_STORAGE",
        "TESSERA_STORAGE_ENDPOINT",
        "TESSERA_STORAGE_REGION",
        "TESSERA_STORAGE_ACCESS_KEY",
        "TESSERA_STORAGE_SECRET_KEY",
        "TESSERA_STORAGE_SPOOL_BYTES",
    }
)


def read_environment(environ: Mapping[str, str]) -> TesseraSettings:
    """Turn ``environ`` into settings.

    Raises:
        SettingsError: a ``TESSERA_*`` name is unknown, or a value cannot be used; the message
            names all of them.
    """
    _refuse_unknown(environ)
    data_dir = Path(environ.get("TESSERA_DATA_DIR") or PROJECT_ROOT / "var").absolute()
    return TesseraSettings(
        data_dir=data_dir,
        database_url=environ.get("TESSERA_DATABASE_URL") or f"sqlite:///{data_dir / 'db.sqlite3'}",
        database_idle_seconds=_number(
            environ,
            "TESSERA_DATABASE_IDLE_SECONDS",
            IDLE_SECONDS,
            within=(1, 3600, "seconds"),
        ),
        redis_url=_redis_url(environ),
        secret_key=_secret(environ, "TESSERA_SECRET_KEY"),
        secret_key_next=_listed(environ, "TESSERA_SECRET_KEY_NEXT"),
        secret_key_fallbacks=_listed(environ, "TESSERA_SECRET_KEY_FALLBACKS"),
        seal_secret=_seal_secret(environ),
        ssh_keys=_ssh_keys(environ),
        allowed_hosts=_listed(environ, "TESSERA_ALLOWED_HOSTS", "localhost,127.0.0.1,[::1]"),
        round_seconds=_number(
            environ, "TESSERA_ROUND_SECONDS", 10.0, within=(0.05, 3600, "seconds")
        ),
        images=_one_of(environ, "TESSERA_IMAGES", ("required", "ignore")),
        defragmentation=_one_of(
            environ, "TESSERA_DEFRAGMENTATION", ("propose", "carry-out", "off")
        ),
        host_network=_one_of(environ, "TESSERA_HOST_NETWORK", ("gangs", "never")),
        local_images=_listed(environ, "TESSERA_LOCAL_IMAGES"),
        registry_mirrors=_mirrors(environ),
        https=_one_of(environ, "TESSERA_HTTPS", ("0", "1")) == "1",
        debug=_one_of(environ, "TESSERA_DEBUG", ("0", "1")) == "1",
        keep_days={
            name: _number(environ, variable, 0.0, within=(-1.0, 36500, "days"))
            for variable, name in _KEEP_NAMES.items()
            if environ.get(variable)
        },
        keep_round_bytes=(
            _bytes(environ, "TESSERA_KEEP_ROUND_BYTES", 0)
            if environ.get("TESSERA_KEEP_ROUND_BYTES")
            else None
        ),
        lease_seconds=_number(
            environ, "TESSERA_LEASE_SECONDS", 1800.0, within=(60, 604800, "seconds")
        ),
        log_cap_bytes=_bytes(environ, "TESSERA_LOG_CAP_BYTES", 64 << 20, least=8 << 20),
        archive_bytes=_bytes(environ, "TESSERA_ARCHIVE_BYTES", 20 << 30),
        disk_bytes=_bytes(environ, "TESSERA_DISK_BYTES", 100 << 30),
        checkpoint_bytes=_bytes(environ, "TESSERA_CHECKPOINT_BYTES", 100 << 30),
        checkpoint_seconds=_number(
            environ, "TESSERA_CHECKPOINT_SECONDS", 1800.0, within=(1, 86400, "seconds")
        ),
        tenant_uids=_uid_range(environ),
        email_url=_email_url(environ),
        email_from=environ.get("TESSERA_EMAIL_FROM") or "tessera@localhost",
        public_url=_public_url(environ),
        hook_networks=_networks(environ, "TESSERA_HOOK_NETWORKS"),
        trusted_proxies=_proxies(environ),
        object_store=_storage(environ, data_dir),
    )


def current_environment() -> TesseraSettings:
    return read_environment(os.environ)


def _refuse_unknown(environ: Mapping[str, str]) -> None:
    unknown = sorted(
        name
        for name in environ
        if name.startswith("TESSERA_")
        and name not in KNOWN
        and name not in IGNORED
        and not name.startswith(IGNORED_PREFIX)
    )
    if unknown:
        raise SettingsError(
            f"unknown environment variables: {', '.join(unknown)}; "
            f"known: {', '.join(sorted(KNOWN))}"
        )


def _secret(environ: Mapping[str, str], name: str) -> str:
    """Return a secret, or the content of its file; errors do not repeat it."""
    path = environ.get(f"{name}_FILE")
    if not path:
        return environ.get(name, "").strip()
    if environ.get(name):
        raise SettingsError(f"{name} and {name}_FILE cannot be combined")
    try:
        with Path(path).open("rb") as file:
            return file.read(MOST_SECRET_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SettingsError(f"{name}_FILE is {path!r}, which cannot be read: {cause}") from None


def _seal_secret(environ: Mapping[str, str]) -> str:
    found = _secret(environ, "TESSERA_SEAL_SECRET")
    if found and len(found) < LEAST_SECRET:
        raise SettingsError(
            f"TESSERA_SEAL_SECRET is too short; use at least {LEAST_SECRET} random characters"
        )
    return found


def _ssh_keys(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return private keys: the current one, then earlier ones, each as its file or in base64."""
    current = _secret(environ, "TESSERA_SSH_KEY")
    earlier = _listed(environ, "TESSERA_SSH_KEY_FALLBACKS")
    if earlier and not current:
        raise SettingsError("TESSERA_SSH_KEY_FALLBACKS needs TESSERA_SSH_KEY")
    return tuple(_private_key(text) for text in (current, *earlier) if text)


def _private_key(text: str) -> str:
    if not text.startswith("-----BEGIN"):
        try:
            text = base64.b64decode(text, validate=True).decode("ascii")
        except ValueError:
            text = ""
    if not text.startswith("-----BEGIN"):
        raise SettingsError(
            "TESSERA_SSH_KEY or TESSERA_SSH_KEY_FALLBACKS is not a private key; use the base64 of "
            "the key file, such as `base64 -w0 id_ed25519`"
        )
    return text.strip() + "\n"


def _number(
    environ: Mapping[str, str], name: str, default: float, *, within: tuple[float, float, str]
) -> float:
    """Parse a number with a unit and check its bounds."""
    least, most, unit = within
    raw = environ.get(name)
    if not raw:
        return default
    try:
        number = float(raw)
    except ValueError:
        number = math.nan
    if not least <= number <= most:
        raise SettingsError(
            f"{name} is {raw!r}; use a number of {unit} between {least:g} and {most:g}"
        )
    return number


def _bytes(environ: Mapping[str, str], name: str, default: int, *, least: int = 0) -> int:
    """Parse a number of bytes of at least ``least``."""
    return int(_number(environ, name, default, within=(least, 1e15, "bytes")))


def _uid_range(environ: Mapping[str, str]) -> tuple[int, int]:
    """Parse the first and the last of a range of Unix user ids."""
    raw = environ.get("TESSERA_TENANT_UIDS") or "71000-79999"
    first, _, last = raw.partition("-")
    if not (first.isdecimal() and last.isdecimal() and 1000 <= int(first) <= int(last) < MAX_UID):
        raise SettingsError(
            f"TESSERA_TENANT_UIDS is {raw!r}; use a range of user ids from 1000, such as"
            " 71000-79999"
        )
    for uid, purpose in RESERVED_UIDS.items():
        if int(first) <= uid <= int(last):
            raise SettingsError(
                f"TESSERA_TENANT_UIDS is {raw!r}, which contains {uid} ({purpose}); use a range"
                f" above or below it, such as 71000-79999"
            )
    return int(first), int(last)


def _redis_url(environ: Mapping[str, str]) -> str:
    """Validate the address of Redis; an invalid one is not repeated."""
    url = environ.get("TESSERA_REDIS_URL") or "redis://127.0.0.1:6379/0"
    try:
        sentinel_master(url)
    except InvalidRedisAddressError as error:
        raise SettingsError(f"TESSERA_REDIS_URL is not valid: {error}") from None
    return url


def _email_url(environ: Mapping[str, str]) -> str:
    """Validate the mail server; an invalid one is not repeated: it may contain a password."""
    url = environ.get("TESSERA_EMAIL_URL", "")
    if url and not is_mail_url(url):
        raise SettingsError(
            "TESSERA_EMAIL_URL is not a valid mail server; use smtp://, smtp+starttls:// or "
            "smtps:// "
            "with user:password@host:port"
        )
    return url


def _public_url(environ: Mapping[str, str]) -> str:
    url = environ.get("TESSERA_PUBLIC_URL", "")
    parts = urlsplit(url)
    if url and (parts.scheme not in ("http", "https") or not parts.netloc):
        raise SettingsError(
            f"TESSERA_PUBLIC_URL is {url!r}; use an address such as https://tessera.example.org"
        )
    return url


def _storage(environ: Mapping[str, str], data_dir: Path) -> StorageConfig | None:
    """Return the configured storage; None for the data directory."""
    place = environ.get("TESSERA_STORAGE", "")
    return None if not place else storage_config(place, environ, data_dir)


def storage_config(place: str, environ: Mapping[str, str], data_dir: Path) -> StorageConfig:
    """Parse the place of a storage; the credentials of its object store are in ``environ``.

    Raises:
        SettingsError: a value cannot be used; it is not repeated, since it may be a credential.
    """
    try:
        root, bucket, prefix = parse_place(place, data_dir=data_dir)
    except ValueError as error:
        raise SettingsError(f"TESSERA_STORAGE is not valid: {error}") from None
    endpoint = environ.get("TESSERA_STORAGE_ENDPOINT", "")
    parts = urlsplit(endpoint)
    if endpoint and (parts.scheme not in ("http", "https") or not parts.hostname):
        raise SettingsError(
            "TESSERA_STORAGE_ENDPOINT is not valid; use an address such as"
            " https://s3.example.org:9000"
        )
    if "@" in parts.netloc:
        raise SettingsError(
            "TESSERA_STORAGE_ENDPOINT contains credentials; use TESSERA_STORAGE_ACCESS_KEY and"
            " TESSERA_STORAGE_SECRET_KEY"
        )
    access, secret = (
        environ.get(f"TESSERA_STORAGE_{name}_KEY", "") for name in ("ACCESS", "SECRET")
    )
    if bool(access) != bool(secret):
        raise SettingsError(
            "set both TESSERA_STORAGE_ACCESS_KEY and TESSERA_STORAGE_SECRET_KEY, or neither"
        )
    return StorageConfig(
        data_dir=root,
        bucket=bucket,
        prefix=prefix,
        endpoint=endpoint if bucket else "",
        region=environ.get("TESSERA_STORAGE_REGION", "") if bucket else "",
        access_key=access if bucket else "",
        secret_key=secret if bucket else "",
        spool_bytes=_bytes(environ, "TESSERA_STORAGE_SPOOL_BYTES", MOST_SPOOL_BYTES),
    )


def _listed(environ: Mapping[str, str], name: str, default: str = "") -> tuple[str, ...]:
    """Split words that are separated by commas."""
    words = environ.get(name, default).split(",")
    return tuple(word.strip() for word in words if word.strip())


def _mirrors(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Parse ``REGISTRY=MIRROR`` pairs; a mirror may have a path."""
    found = {}
    for pair in _listed(environ, "TESSERA_REGISTRY_MIRRORS"):
        match = _MIRROR.fullmatch(pair)
        if match is None:
            raise SettingsError(
                f"TESSERA_REGISTRY_MIRRORS has {pair!r}; use pairs such as"
                " docker.io=mirror.example.org:5000"
            )
        found[match[1]] = match[2]
    return found


def _networks(environ: Mapping[str, str], name: str) -> str:
    text = environ.get(name, "")
    try:
        for part in text.split(","):
            if part.strip():
                ipaddress.ip_network(part.strip(), strict=False)
    except ValueError:
        raise SettingsError(f"{name} is {text!r}; use networks such as 10.1.0.0/16,::1") from None
    return text


def _proxies(environ: Mapping[str, str]) -> tuple[str, ...]:
    parts = _networks(environ, "TESSERA_TRUSTED_PROXIES").split(",")
    return tuple(
        str(ipaddress.ip_network(part.strip(), strict=False)) for part in parts if part.strip()
    )


def _one_of(environ: Mapping[str, str], name: str, values: tuple[str, ...]) -> str:
    value = environ.get(name) or values[0]
    if value not in values:
        raise SettingsError(f"{name} is {value!r}; use one of {', '.join(values)}")
    return value
