"""Nodes behind a jump host: each failure names the host that caused it."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from tenants.keyring import SshKey
from tests.support.openssh_node import OpensshNode, openssh_behind_jump_host
from tests.workers.transports.conftest import bundle, put_in_place
from workers.transports.base import HostKeyError, RefusedError, UnreachableNodeError
from workers.transports.jump import JumpHost, fetch_key_through, jump_host_of
from workers.transports.ssh import Patience, SshAddress, SshTransport

pytestmark = pytest.mark.openssh
OTHER_KEY = (
    asyncssh.generate_private_key("ssh-ed25519").export_public_key("openssh").decode().strip()
)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[OpensshNode]:
    async with openssh_behind_jump_host(tmp_path) as node:
        yield node


async def refusal(address: SshAddress) -> UnreachableNodeError | HostKeyError:
    line = SshTransport(address, bundle(), Patience(connect=10.0, request=20.0))
    with pytest.raises((UnreachableNodeError, HostKeyError)) as refused:
        await line.open()
    return refused.value


def with_jump(node: OpensshNode, **changes: Any) -> SshAddress:
    assert node.address.jump is not None
    return replace(node.address, jump=replace(node.address.jump, **changes))


async def test_a_jump_host_with_another_key_is_refused(node: OpensshNode) -> None:
    found = await refusal(with_jump(node, host_key=OTHER_KEY))

    assert isinstance(found, HostKeyError)
    assert "jump host 127.0.0.1:" in str(found)
    assert "other than the pinned one" in str(found)


async def test_a_node_with_another_key_behind_the_jump_host_is_refused(node: OpensshNode) -> None:
    found = await refusal(replace(node.address, host_key=OTHER_KEY))

    assert isinstance(found, HostKeyError)
    assert str(found).startswith(f"127.0.0.1:{node.address.port} through jump host")


async def test_a_jump_host_that_is_down_is_named(node: OpensshNode) -> None:
    assert node.address.jump is not None

    found = await refusal(with_jump(node, port=1))

    assert str(found).startswith("jump host 127.0.0.1:1: ")


async def test_a_jump_host_that_rejects_the_key_is_named(
    node: OpensshNode, tmp_path: Path
) -> None:
    stranger = asyncssh.generate_private_key("ssh-ed25519")
    stranger.write_private_key(str(tmp_path / "stranger"))

    found = await refusal(
        replace(node.address, client_keys=((tmp_path / "stranger").read_bytes(),))
    )

    assert "jump host" in str(found)
    assert "rejects the control plane's key" in str(found)


async def test_a_node_that_is_down_behind_the_jump_host_is_named_with_it(
    node: OpensshNode,
) -> None:
    found = await refusal(replace(node.address, port=1))

    assert str(found).startswith("127.0.0.1:1 through jump host 127.0.0.1:")


async def test_the_key_of_a_node_is_fetched_through_its_jump_host(node: OpensshNode) -> None:
    address = node.address
    line = await fetch_key_through(
        address.jump, address.client_keys, address.host, address.port, seconds=10.0
    )

    assert line.split()[:2] == address.host_key.split()[:2]
    unknown = replace(address.jump, host_key=OTHER_KEY) if address.jump else None
    with pytest.raises(HostKeyError):
        await fetch_key_through(
            unknown, address.client_keys, address.host, address.port, seconds=10.0
        )


async def test_closing_also_ends_the_connection_to_the_jump_host(node: OpensshNode) -> None:
    line = SshTransport(node.address, bundle(), Patience(connect=20.0, request=20.0))
    await line.open()
    jump = line._jump
    assert jump is not None

    await line.close()
    await jump.wait_closed()

    assert line._jump is None


async def test_the_key_of_the_control_plane_is_replaced_after_the_jump_host_accepts_it(
    node: OpensshNode, tmp_path: Path
) -> None:
    at_jump = tmp_path / "jump" / "home" / ".ssh" / "authorized_keys"
    at_node = tmp_path / "node" / "home" / ".ssh" / "authorized_keys"
    old, new = SshKey.of(node.address.client_keys[0].decode()), SshKey.generate()
    keys = (new.private.encode(), old.private.encode())
    put_in_place(node.home)
    line = SshTransport(replace(node.address, client_keys=keys), bundle(), Patience())
    await line.open()

    with pytest.raises(RefusedError, match="jump host"):
        await line.replace_key(new, old=[old.public])
    assert new.public not in at_node.read_text()
    at_jump.write_text(f"{at_jump.read_text()}{new.public}\n")
    await line.replace_key(new, old=[old.public])

    assert (await line.runs()) == []
    await line.close()
    assert old.public not in at_node.read_text()
    assert new.public in at_node.read_text()


def test_the_column_of_a_node_is_read() -> None:
    stored = {
        "host": "bastion", "port": 2222, "user": "tessera", "host_key": OTHER_KEY,
        "host_key_fingerprint": "SHA256:x",
    }  # fmt: skip

    assert jump_host_of({}) is None
    assert jump_host_of(stored) == JumpHost(
        host="bastion", port=2222, user="tessera", host_key=OTHER_KEY
    )
