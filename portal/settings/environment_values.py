"""Readers of the values of environment variables."""

import base64
import ipaddress
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from portal.settings.backends import is_mail_url
from scheduling.storage.config import MOST_SPOOL_BYTES, StorageConfig, parse_place
from tessera.isolation import RESERVED_UIDS
from workers.redis_address import InvalidRedisAddressError, sentinel_master

MAX_UID: Final = 1 << 31
"""Some programs read a user id above this limit as a negative number."""
_HOST: Final = r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?(?::[0-9]{1,5})?"
_MIRROR: Final = re.compile(rf"({_HOST})=({_HOST}(?:/[a-z0-9][a-z0-9._-]*)*)")
MOST_SECRET_BYTES: Final = 16 << 10
LEAST_SECRET: Final = 32


class SettingsError(ValueError):
    """An environment variable is unknown or has a value that cannot be used."""


def secret_of(environ: Mapping[str, str], name: str) -> str:
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


def seal_secret_of(environ: Mapping[str, str]) -> str:
    found = secret_of(environ, "TESSERA_SEAL_SECRET")
    if found and len(found) < LEAST_SECRET:
        raise SettingsError(
            f"TESSERA_SEAL_SECRET is too short; use at least {LEAST_SECRET} random characters"
        )
    return found


def ssh_keys_of(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return private keys: the current one, then earlier ones, each as its file or in base64."""
    current = secret_of(environ, "TESSERA_SSH_KEY")
    earlier = list_of(environ, "TESSERA_SSH_KEY_FALLBACKS")
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


def number_of(
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


def bytes_of(environ: Mapping[str, str], name: str, default: int, *, least: int = 0) -> int:
    """Parse a number of bytes of at least ``least``."""
    return int(number_of(environ, name, default, within=(least, 1e15, "bytes")))


def uid_range_of(environ: Mapping[str, str]) -> tuple[int, int]:
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


def redis_url_of(environ: Mapping[str, str]) -> str:
    """Validate the address of Redis; an invalid one is not repeated."""
    url = environ.get("TESSERA_REDIS_URL") or "redis://127.0.0.1:6379/0"
    try:
        sentinel_master(url)
    except InvalidRedisAddressError as error:
        raise SettingsError(f"TESSERA_REDIS_URL is not valid: {error}") from None
    return url


def email_url_of(environ: Mapping[str, str]) -> str:
    """Validate the mail server; an invalid one is not repeated: it may contain a password."""
    url = environ.get("TESSERA_EMAIL_URL", "")
    if url and not is_mail_url(url):
        raise SettingsError(
            "TESSERA_EMAIL_URL is not a valid mail server; use smtp://, smtp+starttls:// or "
            "smtps:// "
            "with user:password@host:port"
        )
    return url


def public_url_of(environ: Mapping[str, str]) -> str:
    url = environ.get("TESSERA_PUBLIC_URL", "")
    parts = urlsplit(url)
    if url and (parts.scheme not in ("http", "https") or not parts.netloc):
        raise SettingsError(
            f"TESSERA_PUBLIC_URL is {url!r}; use an address such as https://tessera.example.org"
        )
    return url


def storage_of(environ: Mapping[str, str], data_dir: Path) -> StorageConfig | None:
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
        spool_bytes=bytes_of(environ, "TESSERA_STORAGE_SPOOL_BYTES", MOST_SPOOL_BYTES),
    )


def list_of(environ: Mapping[str, str], name: str, default: str = "") -> tuple[str, ...]:
    """Split words that are separated by commas."""
    words = environ.get(name, default).split(",")
    return tuple(word.strip() for word in words if word.strip())


def mirrors_of(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Parse ``REGISTRY=MIRROR`` pairs; a mirror may have a path."""
    found = {}
    for pair in list_of(environ, "TESSERA_REGISTRY_MIRRORS"):
        match = _MIRROR.fullmatch(pair)
        if match is None:
            raise SettingsError(
                f"TESSERA_REGISTRY_MIRRORS has {pair!r}; use pairs such as"
                " docker.io=mirror.example.org:5000"
            )
        found[match[1]] = match[2]
    return found


def networks_of(environ: Mapping[str, str], name: str) -> str:
    text = environ.get(name, "")
    try:
        for part in text.split(","):
            if part.strip():
                ipaddress.ip_network(part.strip(), strict=False)
    except ValueError:
        raise SettingsError(f"{name} is {text!r}; use networks such as 10.1.0.0/16,::1") from None
    return text


def proxies_of(environ: Mapping[str, str]) -> tuple[str, ...]:
    parts = networks_of(environ, "TESSERA_TRUSTED_PROXIES").split(",")
    return tuple(
        str(ipaddress.ip_network(part.strip(), strict=False)) for part in parts if part.strip()
    )


def choice_of(environ: Mapping[str, str], name: str, values: tuple[str, ...]) -> str:
    value = environ.get(name) or values[0]
    if value not in values:
        raise SettingsError(f"{name} is {value!r}; use one of {', '.join(values)}")
    return value
