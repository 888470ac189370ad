"""Input of ``tessera up``: options, environment, and the password of the admin."""

import argparse
import os
import secrets
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PASSWORD_VARIABLE: Final = "TESSERA_ADMIN_PASSWORD"  # noqa: S105 the name of a variable


class OptionsError(Exception):
    """An option or variable is invalid; the message contains the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of one start.

    Attributes:
        port: port to listen on; 0 selects a free port.
        admin_password: empty if not given.
    """

    host: str
    port: int
    data_dir: Path
    admin_password: str


def read_options(arguments: Sequence[str], environ: MutableMapping[str, str]) -> Options:
    """Parse options and environment, and remove the password from ``environ``.

    Raises:
        OptionsError: the password file cannot be read, or the password is too short.
    """
    parser = argparse.ArgumentParser(prog="python -m portal.supervisor")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--admin-password-file", type=Path)
    found = parser.parse_args(arguments)
    from_environment = environ.pop(PASSWORD_VARIABLE, "")
    password = (
        _read_password(found.admin_password_file)
        if found.admin_password_file
        else from_environment
    )
    data_dir = found.data_dir or Path(environ.get("TESSERA_DATA_DIR") or ROOT / "var")
    return Options(
        host=found.host,
        port=found.port,
        data_dir=data_dir.absolute(),
        admin_password=password,
    )


def make_password() -> str:
    return secrets.token_urlsafe(12)


def child_environment(
    environ: Mapping[str, str],
    options: Options,
    *,
    redis_url: str,
    defaults: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """Return the environment of every child process, without the password of the admin.

    Args:
        environ: the environment of this process.
        options: the options of this start.
        redis_url: address of the broker.
        defaults: variables for names that ``environ`` does not have.
    """
    environment = {**defaults, **environ}
    environment.pop(PASSWORD_VARIABLE, None)
    environment["TESSERA_DATA_DIR"] = str(options.data_dir)
    environment["TESSERA_REDIS_URL"] = redis_url
    environment["PYTHONUNBUFFERED"] = "1"
    # Threads do not speed up operations on small matrices.
    for library in ("OPENBLAS", "OMP"):
        environment.setdefault(f"{library}_NUM_THREADS", "1")
    environment["DJANGO_SETTINGS_MODULE"] = "portal.settings"
    if "TESSERA_ALLOWED_HOSTS" not in environment:
        environment["TESSERA_ALLOWED_HOSTS"] = ",".join(_allowed_hosts(options.host))
    return environment


def _allowed_hosts(host: str) -> list[str]:
    local = ["localhost", "127.0.0.1", "[::1]"]
    named = f"[{host}]" if ":" in host else host
    everywhere = {"0.0.0.0", "[::]"}  # noqa: S104 compared, not bound
    return local if named in local or named in everywhere else [*local, named]


def _read_password(path: Path) -> str:
    try:
        # A pipe is read like a file and then closed, so that no child inherits it.
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionsError(f"the password file {path} cannot be read: {error}") from error
    finally:
        _close_if_inherited(path)
    password = text.partition("\n")[0].rstrip("\r")
    if not password:
        raise OptionsError(f"the password file {path} is empty: its first line is the password")
    return password


def _close_if_inherited(path: Path) -> None:
    if path.parent == Path("/dev/fd") and path.name.isdigit() and int(path.name) > 2:
        os.close(int(path.name))
