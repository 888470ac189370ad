"""Replacing the control plane's key on a node with a real SSH server."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import asyncssh
import pytest

from tenants.keyring import SshKey
from tests.support.openssh_node import OpensshNode, openssh_node
from tests.support.ssh_node import SshNode, ssh_node
from tests.workers.transports.conftest import REAL, bundle, put_in_place
from workers.transports.authorized_keys import authorize
from workers.transports.base import RefusedError, UnreachableNodeError
from workers.transports.ssh import Patience, SshTransport

Served = SshNode | OpensshNode


@pytest.fixture(params=REAL)
async def node(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Served]:
    serve = ssh_node if request.param == "asyncssh" else openssh_node
    async with serve(tmp_path) as served:
        put_in_place(served.home)
        yield served


def authorized(node: Served) -> Path:
    return node.home / ".ssh" / "authorized_keys"


def old_key(node: Served) -> SshKey:
    return SshKey.of(node.address.client_keys[0].decode())


def line_with(node: Served, *keys: SshKey) -> SshTransport:
    pairs = tuple(key.private.encode() for key in keys)
    return SshTransport(replace(node.address, client_keys=pairs), bundle(), Patience())


async def signs_in(node: Served, key: SshKey) -> bool:
    line = line_with(node, key)
    try:
        await line.open()
    except UnreachableNodeError:
        return False
    finally:
        await line.close()
    return True


async def test_the_new_key_replaces_the_old_one_and_the_session_continues(node: Served) -> None:
    old, new = old_key(node), SshKey.generate()
    other = SshKey.generate().public
    known = f'# admins\nfrom="127.0.0.0/8",no-pty {old.public} tessera\n{other} alice\n'
    authorized(node).write_text(known)
    authorized(node).chmod(0o600)
    line = line_with(node, new, old)
    await line.open()

    await line.replace_key(new, old=[old.public])
    await line.replace_key(new, old=[old.public])

    assert (await line.runs()) == []
    await line.close()
    assert authorized(node).read_text() == (
        f'# admins\n{other} alice\nfrom="127.0.0.0/8",no-pty {new.public} tessera\n'
    )
    assert authorized(node).stat().st_mode & 0o777 == 0o600
    assert await signs_in(node, new)
    assert not await signs_in(node, old)


async def test_a_replacement_that_was_interrupted_between_its_steps_is_completed(
    node: Served,
) -> None:
    old, new = old_key(node), SshKey.generate()
    authorized(node).write_text(f"{old.public} tessera\n{new.public} tessera\n")
    line = line_with(node, new, old)
    await line.open()

    await line.replace_key(new, old=[old.public])

    await line.close()
    assert authorized(node).read_text() == f"{new.public} tessera\n"


async def test_the_old_key_remains_if_nobody_can_sign_in_with_the_new_one(node: Served) -> None:
    old, new = old_key(node), SshKey.generate()
    # The new line inherits an option with which no sign-in is possible from here.
    refused = f'from="203.0.113.9" {old.public}\n{old.public} tessera\n'
    authorized(node).write_text(refused)
    line = line_with(node, old)
    await line.open()

    with pytest.raises(RefusedError, match="new key"):
        await line.replace_key(new, old=[old.public])

    await line.close()
    assert await signs_in(node, old)


async def test_a_node_whose_keys_are_elsewhere_is_reported(node: Served) -> None:
    old, new = old_key(node), SshKey.generate()
    line = line_with(node, old)
    await line.open()
    authorized(node).write_text("# moved\n")

    with pytest.raises(RefusedError, match="authorized_keys"):
        await line.replace_key(new, old=[old.public])

    await line.close()
    assert authorized(node).read_text() == "# moved\n"


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        ("head -c 100000 /dev/zero >&2; exit 1", "too much output"),
        (r"printf 'no\033]0;title\007 keys\n' >&2; exit 1", r"no\?]0;title\? keys"),
    ],
)
async def test_output_of_a_hostile_node_is_bounded_and_printable(
    tmp_path: Path, script: str, cause: str
) -> None:
    async with ssh_node(tmp_path, prefix=("sh", "-c", script)) as served:
        address, key = served.address, SshKey.generate()
        async with asyncssh.connect(
            address.host, port=address.port, username=address.user, known_hosts=None,
            client_keys=list(address.client_keys), config=None,
        ) as connection:  # fmt: skip
            with pytest.raises(RefusedError, match=cause):
                await authorize(connection, new=key.public, old=[], remove=False)
