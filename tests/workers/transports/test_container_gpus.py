"""GPUs of containers: what is asked of the engine, and what a job then sees.

No GPU is here. A stand-in takes the place of the NVIDIA hook: the engine calls it as it calls the
real one, and it writes down what it was asked for.
"""

import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import docker
import docker.errors
import pytest

from tests.support.docker_engine import IMAGE, docker_engine
from tests.support.ssh_node import ssh_node
from tests.support.transport_runs import read_log, run_spec, wait_for_exit
from tests.workers.transports.conftest import bundle
from workers.transports.base import Container, Preparation, PrepareError
from workers.transports.docker import DockerTransport, cause_of

pytestmark = pytest.mark.docker
HOOK = """#!/bin/sh
# The engine's call: the argument is the stage, and standard input has the container's state.
cat > {place}/state.json
echo "$1" > {place}/stage
"""


@pytest.fixture(scope="module", params=[True, False], ids=["with-hook", "without-hook"])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, docker.APIClient, Path | None]]:
    place = tmp_path_factory.mktemp("d")
    programs = tmp_path_factory.mktemp("programs")
    if request.param:
        hook = programs / "nvidia-container-runtime-hook"
        hook.write_text(HOOK.format(place=programs))
        hook.chmod(0o755)
    path = f"PATH={programs}:{os.environ['PATH']}"
    with docker_engine(place, prefix=["env", path], has_bridge=False) as (socket, client):
        yield socket, client, programs if request.param else None


@pytest.fixture
async def line(
    engine: tuple[str, docker.APIClient, Path | None], tmp_path: Path
) -> AsyncIterator[DockerTransport]:
    async with ssh_node(tmp_path) as node:
        line = DockerTransport(node.address, bundle(), engine_socket=engine[0])
        await line.open()
        yield line
        await line.close()


async def test_the_hook_gets_the_uuids_or_the_owner_the_message_of_the_engine(
    engine: tuple[str, docker.APIClient, Path | None], line: DockerTransport
) -> None:
    gpus = ("GPU-aa", "GPU-bb")
    run = run_spec("env", env={"NVIDIA_VISIBLE_DEVICES": ",".join(gpus)}, devices=[2, 5])
    wanted = Preparation(run=run, container=Container(image=IMAGE, gpus=gpus))
    await line.prepare(wanted)
    _socket, client, programs = engine

    await line.go(run.run_id)
    status = await wait_for_exit(line, run.run_id)

    (request,) = client.inspect_container(run.run_id)["HostConfig"]["DeviceRequests"]
    assert (request["Driver"], request["DeviceIDs"]) == ("nvidia", list(gpus))
    assert status.exit is not None
    if programs is None:
        assert "could not select device driver" in status.exit.message
        assert status.exit.failure == "node"
        return
    assert status.exit.code == 0, status.exit.message
    assert (programs / "stage").read_text() == "prestart\n"
    assert json.loads((programs / "state.json").read_text())["pid"] > 0
    said = (await read_log(line, run.run_id)).decode().splitlines()
    assert "NVIDIA_VISIBLE_DEVICES=GPU-aa,GPU-bb" in said
    assert not [row for row in said if row.startswith("CUDA_VISIBLE_DEVICES=")]


async def test_the_owner_reads_the_message_of_the_engine(line: DockerTransport) -> None:
    run = run_spec("true", cpus=4000.0)

    with pytest.raises(PrepareError, match="CPUs") as refused:
        await line.prepare(Preparation(run=run, container=Container(image=IMAGE)))

    assert (refused.value.code, refused.value.failure_class) == ("engine-refused", "node")


async def test_the_message_names_no_directory_of_the_node(line: DockerTransport) -> None:
    hello = line.hello
    assert hello is not None
    error = docker.errors.APIError("500", explanation=f"no such file: {hello.root}/runs/a\n")

    assert cause_of(error, hello) == "no such file: ~/.tessera/runs/a"
