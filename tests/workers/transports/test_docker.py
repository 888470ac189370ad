"""Runs in containers, through the engine's API over the node's SSH connection."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import docker
import pytest

from tessera import protocol
from tessera.isolation import VisiblePath
from tests.support.docker_engine import IMAGE, docker_engine
from tests.support.podman_engine import podman_engine
from tests.support.ssh_node import ssh_node
from tests.support.transport_runs import DEADLINE, read_log, run_spec, stop_run, wait_for_exit
from tests.workers.transports.conftest import bundle
from workers.transports.base import Container, Preparation, PrepareError, UnreachableNodeError
from workers.transports.docker import DockerTransport

pytestmark = pytest.mark.docker
LABELS = {"tessera.job": "7"}
LEVELS = ["node", "device"]


ENGINES = {"docker": docker_engine, "podman": podman_engine}


@pytest.fixture(scope="module", params=sorted(ENGINES))
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, docker.APIClient]]:
    with ENGINES[request.param](tmp_path_factory.mktemp("d")) as found:
        yield found


@pytest.fixture
async def line(
    engine: tuple[str, docker.APIClient], tmp_path: Path
) -> AsyncIterator[DockerTransport]:
    async with ssh_node(tmp_path) as node:
        line = DockerTransport(node.address, bundle(), engine_socket=engine[0])
        await line.open()
        yield line
        await line.close()


@pytest.fixture
def client(engine: tuple[str, docker.APIClient]) -> docker.APIClient:
    return engine[1]


def in_container(command: str, **changes: object) -> Preparation:
    run = run_spec(command, **changes)
    return Preparation(run=run, container=Container(image=IMAGE, labels=LABELS))


async def test_a_container_runs_with_its_files_log_and_exit_code(line: DockerTransport) -> None:
    wanted = in_container(
        'cat $TESSERA_JOB_SECRETS_DIR/token; echo " $WORDS"; exit 3', env={"WORDS": "a 'b' $(id)"}
    )
    run_id = wanted.run.run_id

    await line.prepare(
        Preparation(run=wanted.run, container=wanted.container, secrets={"token": "s3cr3t"})
    )
    await line.go(run_id)
    status = await wait_for_exit(line, run_id)

    assert status.exit is not None
    assert status.exit.code == 3
    assert await read_log(line, run_id) == b"s3cr3t a 'b' $(id)\n"


async def test_the_load_of_a_declared_device_is_that_of_its_container(
    line: DockerTransport, tmp_path: Path
) -> None:
    declared = {"cpus": 2, "devices": [{"type": "cpu", "path": []}] * 2, "levels": LEVELS}
    (tmp_path / "home" / ".tessera" / protocol.DEVICES_FILE).write_text(json.dumps(declared))
    wanted = in_container("while :; do :; done", devices=[1])
    await line.prepare(wanted)
    await line.go(wanted.run.run_id)

    async with asyncio.timeout(DEADLINE):
        while not (busy := (await line.telemetry()).devices[1].utilisation) or busy < 0.05:
            await asyncio.sleep(0.1)

    other, mine = (await line.telemetry()).devices
    assert other.memory_bytes == 0
    assert mine.memory_bytes is not None
    assert mine.memory_bytes > 0
    await stop_run(line, wanted.run.run_id)


async def test_a_container_is_named_labelled_limited_and_without_privileges(
    line: DockerTransport, client: docker.APIClient
) -> None:
    wanted = in_container("true", cpus=0.5, memory_bytes=64 << 20)

    await line.prepare(wanted)

    found = client.inspect_container(wanted.run.run_id)
    host = found["HostConfig"]
    assert found["Config"]["Labels"]["tessera.run"] == wanted.run.run_id
    assert found["Config"]["Labels"]["tessera.job"] == "7"
    assert (host["NanoCpus"], host["Memory"]) == (500_000_000, 64 << 20)
    assert host["Privileged"] is False
    assert host["RestartPolicy"]["Name"] == "no"
    assert not host["DeviceRequests"]
    assert {mount["Destination"]: not mount["RW"] for mount in found["Mounts"]} == {
        "/tessera/work": False,
        "/tessera/job": False,
        "/tessera/home": False,
        "/tessera/secrets": True,
        "/tessera/checkpoints": False,
        "/tessera/node.pyz": True,
    }
    await line.cancel(wanted.run.run_id)


async def test_a_job_in_a_container_has_no_capabilities_and_gains_none(
    line: DockerTransport,
) -> None:
    wanted = in_container("cat /proc/self/status")
    await line.prepare(wanted)
    await line.go(wanted.run.run_id)
    await wait_for_exit(line, wanted.run.run_id)

    said = (await read_log(line, wanted.run.run_id)).decode().splitlines()
    found = dict(row.split(":\t", 1) for row in said if ":\t" in row)
    assert {found[name] for name in ("CapBnd", "CapEff", "CapPrm", "CapInh")} == {"0" * 16}
    assert found["NoNewPrivs"] == "1"


async def test_a_job_in_a_container_has_an_account_a_home_and_shared_memory(
    line: DockerTransport,
) -> None:
    look = 'echo "$USER $HOME"; id -un; echo x > "$HOME/file" && cat "$HOME/file"'
    wanted = in_container(f"{look}; cat /etc/passwd /proc/mounts", memory_bytes=256 << 20)
    await line.prepare(wanted)
    await line.prepare(wanted)
    await line.go(wanted.run.run_id)
    await wait_for_exit(line, wanted.run.run_id)

    said = (await read_log(line, wanted.run.run_id)).decode().splitlines()

    # A container of root finds root, which every engine knows, if its image has an account file.
    name = "job" if f"job:x:{os.getuid()}:{os.getgid()}::/tessera/home:/bin/sh" in said else "root"
    assert said[:3] == [f"{protocol.CONTAINER_ACCOUNT} {protocol.CONTAINER_HOME}", name, "x"]
    assert len([row for row in said if row.split(":")[2:3] == [str(os.getuid())]]) == 1
    (shared,) = [row for row in said if " /dev/shm " in row]
    assert f"size={128 << 10}k" in shared


async def test_a_container_sees_visible_paths_without_the_home_of_the_runner(
    line: DockerTransport, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home, outside = tmp_path / "home", tmp_path_factory.mktemp("outside")
    for folder in (tmp_path, home, home / "venv"):
        folder.mkdir(exist_ok=True)
        (folder / "file").write_text(f"of-{folder.name} ")
        folder.chmod(0o755)
    (home / "venv" / "inner").mkdir()
    (outside / "link").symlink_to(tmp_path)
    look = "; ".join(
        f"echo {place}/* {place}/.tessera/*; cat {place}/venv/file {place}/file 2>/dev/null"
        for place in (home, outside / "link" / "home")
    )
    shown = [tmp_path, home / "venv", outside / "link"]
    wanted = in_container(look, visible_paths=[VisiblePath(str(path)) for path in shown])

    await line.prepare(wanted)
    await line.go(wanted.run.run_id)
    status = await wait_for_exit(line, wanted.run.run_id)
    assert status.exit is not None
    assert status.exit.cause == "exited", status.exit.message

    said = (await read_log(line, wanted.run.run_id)).decode()
    assert f"{home}/venv {home}/.tessera/*\nof-venv " in said
    assert f"{outside}/link/home/* {outside}/link/home/.tessera/*\n" in said
    assert "of-home" not in said


@pytest.mark.parametrize("name", ["home/.tessera", "link/runs"])
async def test_a_visible_path_in_the_directory_of_the_runner_is_refused(
    line: DockerTransport, tmp_path: Path, client: docker.APIClient, name: str
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "home" / ".tessera")
    wanted = in_container("true", visible_paths=[VisiblePath(str(tmp_path / name))])

    with pytest.raises(PrepareError) as refused:
        await line.prepare(wanted)

    assert (refused.value.code, refused.value.failure_class) == ("bad-visible-path", "node")
    with pytest.raises(docker.errors.NotFound):
        client.inspect_container(wanted.run.run_id)


async def test_preparing_again_adopts_the_container(
    line: DockerTransport, client: docker.APIClient
) -> None:
    wanted = in_container("true")
    await line.prepare(wanted)
    before = client.inspect_container(wanted.run.run_id)["Id"]

    await line.prepare(wanted)

    assert client.inspect_container(wanted.run.run_id)["Id"] == before
    await line.cancel(wanted.run.run_id)


async def test_cancelling_and_removing_leave_no_container(
    line: DockerTransport, client: docker.APIClient
) -> None:
    cancelled, run = in_container("true"), in_container("true")
    await line.prepare(cancelled)
    await line.prepare(run)

    await line.cancel(cancelled.run.run_id)
    await line.go(run.run.run_id)
    await wait_for_exit(line, run.run.run_id)
    await line.remove(run.run.run_id)

    names = {name for found in client.containers(all=True) for name in found["Names"]}
    assert not names & {f"/{cancelled.run.run_id}", f"/{run.run.run_id}"}
    assert await line.runs() == []


async def test_a_container_is_stopped(line: DockerTransport) -> None:
    wanted = in_container("sleep 60")
    await line.prepare(wanted)
    await line.go(wanted.run.run_id)

    await line.stop(wanted.run.run_id, grace_seconds=1.0, reason="test")
    status = await wait_for_exit(line, wanted.run.run_id)

    assert status.exit is not None
    assert status.exit.cause == protocol.CAUSE_STOPPED


async def test_an_image_that_nobody_has_is_a_failure_of_the_image(line: DockerTransport) -> None:
    run = run_spec("true")

    with pytest.raises(PrepareError) as refused:
        await line.prepare(Preparation(run=run, container=Container(image="127.0.0.1:9/none:1")))

    assert refused.value.failure_class == protocol.IMAGE
    assert await line.runs() == []


async def test_a_name_that_is_taken_by_somebody_else_is_not_adopted(
    line: DockerTransport, client: docker.APIClient
) -> None:
    wanted = in_container("true")
    client.create_container(IMAGE, ["/bin/sh"], name=wanted.run.run_id)

    with pytest.raises(PrepareError) as refused:
        await line.prepare(wanted)

    assert refused.value.code == "container-name-taken"
    assert await line.runs() == []
    client.remove_container(wanted.run.run_id)


async def test_plain_processes_run_beside_containers(line: DockerTransport) -> None:
    run = run_spec("echo plain")

    await line.prepare(Preparation(run=run))
    await line.go(run.run_id)
    await wait_for_exit(line, run.run_id)

    assert await read_log(line, run.run_id) == b"plain\n"


async def test_an_engine_that_is_not_there_is_an_unreachable_node(
    engine: tuple[str, docker.APIClient], tmp_path: Path
) -> None:
    async with ssh_node(tmp_path) as node:
        line = DockerTransport(node.address, bundle(), engine_socket="/nonexistent.sock")
        await line.open()

        async with asyncio.timeout(20):
            with pytest.raises(UnreachableNodeError):
                await line.prepare(in_container("true"))

        await line.close()
