"""The process's environment, read once into one frozen value and validated."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from portal.settings.backends import IDLE_SECONDS
from portal.settings.environment_values import (
    SettingsError,
    bytes_of,
    choice_of,
    email_url_of,
    list_of,
    mirrors_of,
    networks_of,
    number_of,
    proxies_of,
    public_url_of,
    redis_url_of,
    seal_secret_of,
    secret_of,
    ssh_keys_of,
    storage_of,
    uid_range_of,
)
from scheduling.storage.config import StorageConfig

PROJECT_ROOT: Final = Path(__file__).resolve().parent.parent.parent

IGNORED: Final = frozenset({"TESSERA_SHARED", "TESSERA_URL", "TESSERA_TOKEN"})
IGNORED_PREFIX: Final = "TESSERA_JOB_"


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
        defragmentation: ``off``, ``propose`` or ``carry-out``: whether moves of jobs
            that free devices for larger ones are proposed or executed.
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


def _keep_days_of(environ: Mapping[str, str]) -> dict[str, float]:
    """Return the retention of each kind of row that is set, in days."""
    return {
        name: number_of(environ, variable, 0.0, within=(-1.0, 36500, "days"))
        for variable, name in _KEEP_NAMES.items()
        if environ.get(variable)
    }


def _keep_round_bytes_of(environ: Mapping[str, str]) -> int | None:
    """Return the most bytes of stored rounds, or None if it is not set."""
    if not environ.get("TESSERA_KEEP_ROUND_BYTES"):
        return None
    return bytes_of(environ, "TESSERA_KEEP_ROUND_BYTES", 0)


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
        database_idle_seconds=number_of(
            environ,
            "TESSERA_DATABASE_IDLE_SECONDS",
            IDLE_SECONDS,
            within=(1, 3600, "seconds"),
        ),
        redis_url=redis_url_of(environ),
        secret_key=secret_of(environ, "TESSERA_SECRET_KEY"),
        secret_key_next=list_of(environ, "TESSERA_SECRET_KEY_NEXT"),
        secret_key_fallbacks=list_of(environ, "TESSERA_SECRET_KEY_FALLBACKS"),
        seal_secret=seal_secret_of(environ),
        ssh_keys=ssh_keys_of(environ),
        allowed_hosts=list_of(environ, "TESSERA_ALLOWED_HOSTS", "localhost,127.0.0.1,[::1]"),
        round_seconds=number_of(
            environ, "TESSERA_ROUND_SECONDS", 10.0, within=(0.05, 3600, "seconds")
        ),
        images=choice_of(environ, "TESSERA_IMAGES", ("required", "ignore")),
        defragmentation=choice_of(
            environ, "TESSERA_DEFRAGMENTATION", ("propose", "carry-out", "off")
        ),
        host_network=choice_of(environ, "TESSERA_HOST_NETWORK", ("gangs", "never")),
        local_images=list_of(environ, "TESSERA_LOCAL_IMAGES"),
        registry_mirrors=mirrors_of(environ),
        https=choice_of(environ, "TESSERA_HTTPS", ("0", "1")) == "1",
        debug=choice_of(environ, "TESSERA_DEBUG", ("0", "1")) == "1",
        keep_days=_keep_days_of(environ),
        keep_round_bytes=_keep_round_bytes_of(environ),
        lease_seconds=number_of(
            environ, "TESSERA_LEASE_SECONDS", 1800.0, within=(60, 604800, "seconds")
        ),
        log_cap_bytes=bytes_of(environ, "TESSERA_LOG_CAP_BYTES", 64 << 20, least=8 << 20),
        archive_bytes=bytes_of(environ, "TESSERA_ARCHIVE_BYTES", 20 << 30),
        disk_bytes=bytes_of(environ, "TESSERA_DISK_BYTES", 100 << 30),
        checkpoint_bytes=bytes_of(environ, "TESSERA_CHECKPOINT_BYTES", 100 << 30),
        checkpoint_seconds=number_of(
            environ, "TESSERA_CHECKPOINT_SECONDS", 1800.0, within=(1, 86400, "seconds")
        ),
        tenant_uids=uid_range_of(environ),
        email_url=email_url_of(environ),
        email_from=environ.get("TESSERA_EMAIL_FROM") or "tessera@localhost",
        public_url=public_url_of(environ),
        hook_networks=networks_of(environ, "TESSERA_HOOK_NETWORKS"),
        trusted_proxies=proxies_of(environ),
        object_store=storage_of(environ, data_dir),
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
