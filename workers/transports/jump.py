"""Connections to jump hosts, through which nodes are reached."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import asyncssh

from workers.transports.base import HostKeyError, UnreachableNodeError
from workers.transports.hostkeys import fetch_host_key, pinned


@dataclass(frozen=True, slots=True, kw_only=True)
class JumpHost:
    """An SSH server that forwards connections to nodes.

    Attributes:
        host_key: the pinned public key line.
    """

    host: str
    port: int
    user: str
    host_key: str

    @property
    def name(self) -> str:
        """Address for messages."""
        return f"jump host {self.host}:{self.port}"


def jump_host_of(stored: Mapping[str, Any]) -> JumpHost | None:
    """Return the jump host in the column of a node; None if the column is empty."""
    if not stored:
        return None
    names = ("host", "port", "user", "host_key")
    return JumpHost(**{name: stored[name] for name in names})


async def connect_to_jump_host(
    jump: JumpHost, client_keys: Sequence[bytes], *, seconds: float, keepalive: float = 5.0
) -> asyncssh.SSHClientConnection:
    """Connect to a jump host with one of the private keys of the control plane.

    Raises:
        HostKeyError: it presents another host key than the pinned one.
        UnreachableNodeError: it does not respond, or rejects the key.
    """
    try:
        async with asyncio.timeout(seconds):
            return await asyncssh.connect(
                jump.host,
                port=jump.port,
                username=jump.user,
                client_keys=list(client_keys),
                known_hosts=pinned(jump.host_key),
                preferred_auth="publickey",
                config=None,
                agent_path=None,
                gss_host=None,
                keepalive_interval=keepalive,
                keepalive_count_max=3,
            )
    except TimeoutError:
        raise UnreachableNodeError(f"{jump.name} does not respond within {seconds:g} s") from None
    except asyncssh.HostKeyNotVerifiable:
        raise HostKeyError(f"{jump.name} presents a host key other than the pinned one") from None
    except asyncssh.PermissionDenied:
        raise UnreachableNodeError(
            f"{jump.name} rejects the control plane's key for user {jump.user}"
        ) from None
    except (OSError, asyncssh.Error) as error:
        raise UnreachableNodeError(f"{jump.name}: {error}") from error


async def fetch_key_through(
    jump: JumpHost | None, client_keys: Sequence[bytes], host: str, port: int, *, seconds: float
) -> str:
    """Return the public key of a node as ``fetch_host_key`` does, through its jump host.

    Raises:
        HostKeyError: the jump host presents another key than the pinned one.
        UnreachableNodeError: the jump host or the node does not respond.
    """
    if jump is None:
        return await fetch_host_key(host, port, seconds=seconds)
    line = await connect_to_jump_host(jump, client_keys, seconds=seconds)
    try:
        return await fetch_host_key(host, port, seconds=seconds, tunnel=line)
    finally:
        line.abort()
