"""Which portal a command speaks to, and as whom: options, environment, stored credentials."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tessera.cli.exits import UsageError
from tessera.client import DEFAULT_URL, Client


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What ``tessera login`` has stored."""

    url: str = ""
    token: str = ""


def credentials_path() -> Path:
    """Where the credentials lie, a file that only its owner can read."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "tessera" / "credentials"


def load_credentials() -> Credentials:
    """The stored credentials; empty when there are none."""
    path = credentials_path()
    try:
        stored: dict[str, Any] = json.loads(path.read_text())
        return Credentials(url=str(stored["url"]), token=str(stored["token"]))
    except FileNotFoundError:
        return Credentials()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{path} cannot be read ({error}): remove it and sign in with `tessera login`"
        ) from error


def store_credentials(credentials: Credentials) -> Path:
    """Keep credentials for later commands.

    Returns:
        The file, which only its owner can read.
    """
    path = credentials_path()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "w") as file:
        os.fchmod(file.fileno(), 0o600)
        json.dump({"url": credentials.url, "token": credentials.token}, file)
    partial.replace(path)
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What the global options said."""

    url: str = ""
    token: str = ""

    def address(self) -> str:
        """The portal's address: option or ``TESSERA_URL``, last login, the local default."""
        return self.url or load_credentials().url or DEFAULT_URL

    def client(self) -> Client:
        """A client with the token of the options, ``TESSERA_TOKEN`` or the last login.

        A stored token is sent only to the portal it came from.
        """
        token = self.token
        if not token:
            stored = load_credentials()
            token = stored.token if stored.url.rstrip("/") == self.address().rstrip("/") else ""
        return Client(self.address(), token)
