"""The demo's nodes as a client sees them: real SSH, a clean place, jobs that stay."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from demo.nodes import PATHS, declared_devices
from demo.places import LISTING, NODES, take_places
from portal.supervisor.files import DataDir
from tessera.node.probe import read_declaration
from tests.conftest import PROJECT_ROOT
from tests.support.waiting import is_alive, wait_until

Listing = list[dict[str, Any]]
Serve = Callable[..., tuple["subprocess.Popen[bytes]", Listing]]


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    made = DataDir(root=tmp_path / "var")
    made.prepare()
    (made.root / "demo").mkdir()
    return made


@pytest.fixture
def serve(data: DataDir) -> Iterator[Serve]:
    """Starts the nodes as the supervisor does and waits until they listen."""
    running: list[subprocess.Popen[bytes]] = []

    def start(**places: int) -> tuple["subprocess.Popen[bytes]", Listing]:
        listing = data.root / "demo" / LISTING
        before = listing.stat().st_mtime_ns if listing.exists() else 0
        command = [sys.executable, "-m", "demo.nodes", str(data.root / "demo")]
        command += ["--authorized-key", str(data.client_public_key)]
        command += [f"--place={name}={handle}" for name, handle in places.items()]
        environment = {"PATH": os.environ["PATH"], "TESSERA_SECRET_KEY": "secret-1"}
        handles = tuple(places.values())
        running.append(
            subprocess.Popen(command, cwd=PROJECT_ROOT, env=environment, pass_fds=handles)
        )
        wait_until(lambda: listing.exists() and listing.stat().st_mtime_ns > before)
        return running[-1], json.loads(listing.read_text())

    yield start
    for server in running:
        server.kill()
        server.wait()


@asynccontextmanager
async def connected(
    node: dict[str, Any], key: Path
) -> AsyncIterator[asyncssh.SSHClientConnection]:
    pinned: tuple[list[Any], ...] = ([asyncssh.import_public_key(node["host_key"])], [], [])
    async with asyncssh.connect(
        node["host"], node["port"], username=node["user"], client_keys=[str(key)],
        known_hosts=pinned, config=None, agent_path=None, connect_timeout=60,
    ) as connection:  # fmt: skip
        yield connection


def end(server: "subprocess.Popen[bytes]") -> None:
    server.send_signal(signal.SIGTERM)
    assert server.wait(timeout=60) == 0


async def test_places_that_are_held_are_nobody_elses_while_the_nodes_restart(
    serve: Serve, data: DataDir
) -> None:
    places = take_places(data.root / "demo")
    handles = {name: place.fileno() for name, place in places.items()}
    first, listing = serve(**handles)

    first.kill()
    first.wait()
    rivals = take_places(data.root / "demo")
    assert {rival.getsockname() for rival in rivals.values()}.isdisjoint(
        (node["host"], node["port"]) for node in listing
    )
    _, again = serve(**handles)

    assert again == listing
    async with connected(listing[0], data.client_key) as node:
        assert (await node.run("echo here")).stdout == "here\n"
    for place in (*places.values(), *rivals.values()):
        place.close()


async def test_a_command_runs_in_its_nodes_home_with_nothing_of_the_control_planes_environment(
    serve: Serve, data: DataDir
) -> None:
    _, listing = serve()

    async with connected(listing[1], data.client_key) as node:
        ran = await node.run("pwd; env; exec 1>&2; echo wrong; exit 3")
        python = await node.run("exec python3 -c 'import sys; print(sys.prefix)'")
        killed = await node.run("kill -KILL $$")

    lines = str(ran.stdout).splitlines()
    assert lines[0] == str(data.root / "demo" / "demo-2" / "home")
    assert "secret-1" not in str(ran.stdout)
    assert (ran.exit_status, str(ran.stderr)) == (3, "wrong\n")
    assert str(python.stdout).strip() == sys.prefix
    assert killed.exit_signal is not None
    assert killed.exit_signal[0] == "KILL"


async def test_many_short_commands_share_a_line_that_stays(serve: Serve, data: DataDir) -> None:
    _, listing = serve()

    async with connected(listing[0], data.client_key) as node:
        for _ in range(5):
            ran = await asyncio.gather(
                *(node.run(f"echo out {n}; echo err {n} >&2; exit {n}") for n in range(8))
            )
            found = [(str(one.stdout), str(one.stderr), one.exit_status) for one in ran]

            assert found == [(f"out {n}\n", f"err {n}\n", n) for n in range(8)]


async def test_what_goes_in_comes_out_whole(serve: Serve, data: DataDir) -> None:
    _, listing = serve()
    sent = "é" * 1_000_000

    async with connected(listing[0], data.client_key) as node:
        ran = await node.run("cat", input=sent)

    assert ran.stdout == sent


async def test_a_detached_process_outlives_the_node_server_and_a_command_on_a_line_does_not(
    serve: Serve, data: DataDir
) -> None:
    server, listing = serve()
    async with connected(listing[0], data.client_key) as node:
        detached = await node.run("setsid sleep 60 >/dev/null 2>&1 </dev/null & echo $!")
        attached = await node.create_process("echo $$; exec sleep 60")
        staying, going = int(str(detached.stdout)), int(await attached.stdout.readline())

        end(server)

        wait_until(lambda: not is_alive(going))
    try:
        assert is_alive(staying)
    finally:
        os.kill(staying, signal.SIGKILL)


async def test_host_keys_and_ports_are_the_same_after_a_restart(serve: Serve) -> None:
    first, before = serve()
    end(first)

    _, after = serve()

    assert after == before
    assert len({node["host_key"] for node in after}) == len(NODES)


async def test_only_the_control_planes_key_opens_the_door(
    serve: Serve, data: DataDir, tmp_path: Path
) -> None:
    _, listing = serve()
    other = tmp_path / "other"
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(str(other))

    with pytest.raises(asyncssh.PermissionDenied):
        async with connected(listing[0], other):
            pass


async def test_file_transfer_stays_in_the_home_also_through_links(
    serve: Serve, data: DataDir
) -> None:
    _, listing = serve()
    home = data.root / "demo" / "demo-1" / "home"
    (home / "out").symlink_to("/etc")

    async with connected(listing[0], data.client_key) as node, node.start_sftp_client() as sftp:
        async with sftp.open("a.txt", "w") as file:
            await file.write("here")
        names = await sftp.listdir(".")
        for outside in ("/etc", "../../x", "out/passwd"):
            with pytest.raises(asyncssh.SFTPPermissionDenied):
                await sftp.stat(outside)

    assert (home / "a.txt").read_text() == "here"
    assert "a.txt" in names


def test_the_nodes_declare_what_the_probe_can_read() -> None:
    for node in NODES:
        devices, levels, cpus, memory, *_ = read_declaration(declared_devices(node))

        assert levels == ["node", "socket", "pcie", "device"]
        assert {device.type for device in devices} == {node.device_type}
        assert (len(devices), cpus, memory) == (8, 32, 64 << 30)
        assert [tuple(device.path) for device in devices] != list(PATHS[:1]) * 8
    assert {node.device_type for node in NODES} == {"cpu-a", "cpu-b"}
