"""Sign-in: ``login``, ``logout``, ``token``, ``password-link``, credentials and the session."""

import json
import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from tessera.cli.exits import UsageError
from tessera.cli.output import AsJson, err, out, print_json
from tessera.client import DEFAULT_URL, ApiError, Client
from tessera.results import Token

JOB_SCOPES = ("jobs:read", "jobs:write")
ALL_SCOPES = (*JOB_SCOPES, "vc:admin", "nodes:admin", "audit:read", "tenant:admin")
_SCOPES = f"Scope; repeatable: {', '.join(ALL_SCOPES)}. Default: {' and '.join(JOB_SCOPES)}."

User = Annotated[str, typer.Option("--user", "-u", help="User name.")]
PasswordStdin = Annotated[
    bool, typer.Option("--password-stdin", help="Read the password from standard input.")
]
Days = Annotated[int | None, typer.Option("--days", min=1, help="Days until the token expires.")]

token_app = typer.Typer(help="Tokens for scripts.", no_args_is_help=True, rich_markup_mode=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Credentials stored by ``tessera login``."""

    url: str = ""
    token: str = ""


def credentials_path() -> Path:
    """Return the path of the credentials file, which only its owner can read."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "tessera" / "credentials"


def load_credentials() -> Credentials:
    """Load the stored credentials; empty if there are none."""
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
    """Store credentials for later commands.

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
    """Values of the global options."""

    url: str = ""
    token: str = ""

    def address(self) -> str:
        """Return the portal's address: option or ``TESSERA_URL``, last login, local default."""
        return self.url or load_credentials().url or DEFAULT_URL

    def client(self) -> Client:
        """Create a client with the token of the options, ``TESSERA_TOKEN`` or the last login.

        A stored token is sent only to the portal it came from. Without a token, a person at a
        terminal signs in here.
        """
        address = self.address()
        token = self.token
        if not token:
            stored = load_credentials()
            token = stored.token if stored.url.rstrip("/") == address.rstrip("/") else ""
        if not token and sys.stdin.isatty():
            err().print(f"Not signed in to {address}.", markup=False)
            made, _ = sign_in(address, _ask("User"), _password(from_stdin=False))
            token = made.key
        return Client(address, token)


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(login)
    app.command()(logout)
    app.command("password-link")(password_link)
    app.add_typer(token_app, name="token")


def login(
    context: typer.Context,
    user: User = "",
    *,
    password_stdin: PasswordStdin = False,
    days: Days = 90,
    as_json: AsJson = False,
) -> None:
    """Sign in: create a token with name and password, and store it for later commands."""
    session: Session = context.obj
    address = session.address()
    name = user or _ask("User")
    token, path = sign_in(address, name, _password(from_stdin=password_stdin), days=days)
    if as_json:
        print_json({"url": address, "user": name, "prefix": token.prefix, "stored": str(path)})
    else:
        out().print(f"Signed in to {address} as {name}; token stored in {path}.", markup=False)


def sign_in(
    address: str, user: str, password: str, *, days: int | None = 90
) -> tuple[Token, Path]:
    """Create a token with name and password, and store it; returns it and the path of the file."""
    with Client(address) as client:
        token = _token_of_all_allowed(
            client,
            name=f"tessera login on {socket.gethostname()}"[:100],
            user=user,
            password=password,
            expires_in_days=days,
        )
    return token, store_credentials(Credentials(url=address, token=token.key))


def logout() -> None:
    """Delete the stored token. The portal accepts the token until it expires."""
    credentials_path().unlink(missing_ok=True)


def password_link(
    context: typer.Context,
    username: Annotated[str, typer.Argument(help="User whose password the link sets.")],
    user: Annotated[str, typer.Option("--user", "-u", help="User name of a cluster admin.")] = "",
    *,
    password_stdin: PasswordStdin = False,
    as_json: AsJson = False,
) -> None:
    """Create a one-time link with which a user sets a password, and print it once.

    Needs the name and password of a cluster admin; a token is not accepted.
    """
    session: Session = context.obj
    with Client(session.address()) as client:
        link = client.create_password_link(
            username, user=user or _ask("User"), password=_password(from_stdin=password_stdin)
        )
    if as_json:
        print_json(dict(link))
    else:
        typer.echo(link["url"])


@token_app.command("create")
def create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Purpose of the token.")],
    user: User = "",
    scope: Annotated[list[str] | None, typer.Option("--scope", help=_SCOPES)] = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", help="Restrict the token to one tenant.")
    ] = None,
    *,
    days: Days = None,
    password_stdin: PasswordStdin = False,
    as_json: AsJson = False,
) -> None:
    """Create a token and print its key once."""
    session: Session = context.obj
    with Client(session.address()) as client:
        token = client.create_token(
            name=name,
            scopes=scope or list(JOB_SCOPES),
            user=user or _ask("User"),
            password=_password(from_stdin=password_stdin),
            expires_in_days=days,
            tenant=tenant,
        )
    if as_json:
        print_json(dict(token.body))
    else:
        typer.echo(token.key)


def _token_of_all_allowed(client: Client, **wanted: Any) -> Token:
    """Create a token with every scope that the user's roles allow."""
    try:
        return client.create_token(scopes=list(ALL_SCOPES), **wanted)
    except ApiError as error:
        refused = {found.value for found in error.errors if found.field == "scopes"}
        allowed = [scope for scope in ALL_SCOPES if scope not in refused]
        if not refused or not allowed:
            raise
    return client.create_token(scopes=allowed, **wanted)


def _password(*, from_stdin: bool) -> str:
    """Return the password; it is never an argument, which all users of the machine could read."""
    if from_stdin:
        return sys.stdin.readline().rstrip("\r\n")
    if not sys.stdin.isatty():
        raise UsageError("the password prompt needs a terminal: use --password-stdin")
    return str(typer.prompt("Password", hide_input=True, err=True))


def _ask(what: str) -> str:
    if not sys.stdin.isatty():
        raise UsageError(f"the prompt needs a terminal: use --{what.lower()}")
    return str(typer.prompt(what, default=os.environ.get("USER", ""), err=True))
