"""``tessera join``: writes the environment file of a further control host."""

import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import httpx
import typer

from tessera.cli.exits import UsageError
from tessera.cli.output import out
from tessera.client import ClientError, UnreachableError
from tessera.joining import PATH, bundle_key, split_token

SECONDS: Final = 20.0
MOST_BYTES: Final = 1 << 20
_NAME: Final = re.compile(r"^(TESSERA_[A-Z_]+)=", re.MULTILINE)

Environment = Annotated[
    Path, typer.Option("--environment", help="File to create, readable only by its owner.")
]


def join(
    url: Annotated[str, typer.Argument(help="Address of the portal on an existing host.")],
    environment: Environment = Path("/etc/tessera/environment"),
) -> None:
    """Get the environment of the other control hosts, with a token of `manage.py join_token`.

    The command reads the token from the terminal or from standard input.
    """
    if environment.exists():
        raise UsageError(f"{environment} exists: choose another file with --environment")
    token = (
        typer.prompt("Token", hide_input=True, err=True)
        if sys.stdin.isatty()
        else sys.stdin.readline()
    )
    try:
        bundle_id, secret = split_token(token)
    except ValueError:
        raise UsageError(
            "the token is not valid: use the line of `manage.py join_token`"
        ) from None
    _fernet_module()
    # All that can fail here fails before the fetch, which works once.
    handle = _create(environment)
    try:
        with os.fdopen(handle, "wb") as file:
            text = _decrypted(_fetch(url, bundle_id), secret)
            file.write(text)
    except BaseException:
        environment.unlink()
        raise
    # A value may have several lines, so not every "=" follows a name.
    names = _NAME.findall(text.decode())
    out().print(f"wrote {environment} with {', '.join(names)}")
    out().print("Next: run `manage.py set_up` with this environment, then start the processes.")


def _create(environment: Path) -> int:
    try:
        return os.open(environment, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise UsageError(f"{environment} cannot be created: {error.strerror}") from None


def _fetch(url: str, bundle_id: str) -> bytes:
    """Fetch the bundle, which exists only until then; only the ID of the token is sent."""
    try:
        answer = httpx.post(
            url.rstrip("/") + PATH, json={"id": bundle_id}, timeout=SECONDS, follow_redirects=False
        )
    except httpx.HTTPError as error:
        raise UnreachableError(url, str(error) or type(error).__name__) from None
    if answer.status_code == httpx.codes.NOT_FOUND:
        raise ClientError(
            "the token was used before or has expired: create one with `manage.py join_token`"
        )
    if answer.status_code != httpx.codes.OK or len(answer.content) > MOST_BYTES:
        raise ClientError(f"{url} returned {answer.status_code}; use the address of a portal")
    return answer.content


def _decrypted(sealed: bytes, secret: str) -> bytes:
    fernet = _fernet_module()
    try:
        return bytes(fernet.Fernet(bundle_key(secret)).decrypt(sealed))
    except fernet.InvalidToken:
        raise ClientError("the response was not encrypted with this token") from None


def _fernet_module() -> Any:
    try:
        from cryptography import fernet  # noqa: PLC0415 only control hosts have the package
    except ImportError:
        raise UsageError(
            "`tessera join` needs the packages of a server: run ./tessera join"
        ) from None
    return fernet
