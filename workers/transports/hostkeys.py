"""Host keys: fetched before they are pinned; fetching does not establish trust."""

import asyncio
import os
from typing import Any

import asyncssh

from workers.transports.base import HostKeyError, UnreachableNodeError


def fingerprint(public_key: str) -> str:
    """Return the SHA-256 fingerprint of a public key line, as ``ssh-keygen -l`` prints it.

    Raises:
        ValueError: the line is not a public key.
    """
    try:
        return str(asyncssh.import_public_key(public_key).get_fingerprint("sha256"))
    except asyncssh.KeyImportError as error:
        raise ValueError(f"not a public key: {error}") from None


async def fetch_host_key(
    host: str,
    port: int,
    *,
    seconds: float = 10.0,
    tunnel: asyncssh.SSHClientConnection | None = None,
) -> str:
    """Return the public key of a node as one line without comment; it is not trusted yet.

    Args:
        host: address of the node.
        port: port of its SSH server.
        seconds: time limit.
        tunnel: connection to the jump host of the node; None to connect directly.

    Raises:
        UnreachableNodeError: no response, or not SSH; the message omits the address.
    """
    try:
        async with asyncio.timeout(seconds):
            key = await asyncssh.get_server_host_key(host, port, tunnel=tunnel or (), config=None)
    except TimeoutError:
        raise UnreachableNodeError(f"no response within {seconds:g} s") from None
    except (OSError, asyncssh.Error) as error:
        raise UnreachableNodeError(_cause(error)) from error
    if key is None:
        raise UnreachableNodeError("it presents no host key")
    return " ".join(key.export_public_key("openssh").decode("ascii").split()[:2])


def _cause(error: OSError | asyncssh.Error) -> str:
    """Return the cause of an error, without number and address, which the caller has."""
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return str(getattr(error, "strerror", None) or error)


def pinned(public_key: str) -> tuple[list[Any], list[Any], list[Any]]:
    """Return the one trusted key in asyncssh's format: trusted, authorities, revoked.

    Raises:
        HostKeyError: no valid key is stored.
    """
    try:
        return [asyncssh.import_public_key(public_key)], [], []
    except asyncssh.KeyImportError:
        raise HostKeyError("no host key is pinned for this node") from None
