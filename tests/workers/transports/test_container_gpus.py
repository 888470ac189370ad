"""GPUs of containers: what is asked of the engine, and what a job then sees.

No GPU is here. A stand-in takes the place of the NVIDIA hook: the engine calls it as it calls the
real one; it writes down what it was asked for, and creates the device files in the container.
"""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import docker
import docker.errors
import docker.types
import pytest

from tessera.node.container_gpus import PODMAN_RELEASE
from tests.support.docker_engine import IMAGE, docker_engine
from tests.support.nvidia_hook import NvidiaHook, install_hook
from tests.support.podman_engine import podman_engine
from tests.support.ssh_node import ssh_node
from tests.support.transport_runs import read_log, run_spec, wait_for_exit
from tests.workers.transports.conftest import bundle
from workers.transports.base import Container, Preparation, PrepareError
from workers.transports.docker import DockerTransport, cause_of

pytestmark = pytest.mark.docker
GPUS = {"GPU-aa": 2, "GPU-bb": 5, "GPU-cc": 0}
LOOK = """
env
for file in /dev/nvidia*; do echo "sees $file"; (: > $file) && echo "opens $file"; done
"""


@pytest.fixture(scope="module", params=[True, False], ids=["with-hook", "without-hook"])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, docker.APIClient, NvidiaHook | None]]:
    place = tmp_path_factory.mktemp("d")
    programs = tmp_path_factory.mktemp("programs")
    hook = install_hook(programs, GPUS) if request.param else None
    path = f"PATH={programs}:{os.environ['PATH']}"
    with docker_engine(place, prefix=["env", path], has_bridge=False) as (socket, client):
        yield socket, client, hook


@pytest.fixture
async def line(
    engine: tuple[str, docker.APIClient, NvidiaHook | None], tmp_path: Path
) -> AsyncIterator[DockerTransport]:
    async with ssh_node(tmp_path) as node:
        line = DockerTransport(node.address, bundle(), engine_socket=engine[0])
        await line.open()
        yield line
        await line.close()


async def lines_of(line: DockerTransport, *gpus: str) -> tuple[list[str], str]:
    """The output of a job in a container with these GPUs, and the message of its end."""
    env = {"NVIDIA_VISIBLE_DEVICES": ",".join(gpus) or "void"}
    run = run_spec(LOOK, env=env, devices=list(range(len(gpus))))
    await line.prepare(Preparation(run=run, container=Container(image=IMAGE, gpus=gpus)))
    await line.go(run.run_id)
    status = await wait_for_exit(line, run.run_id)
    assert status.exit is not None
    return (await read_log(line, run.run_id)).decode().splitlines(), status.exit.message


async def test_the_hook_gets_the_uuids_or_the_owner_the_message_of_the_engine(
    engine: tuple[str, docker.APIClient, NvidiaHook | None], line: DockerTransport
) -> None:
    gpus = ("GPU-aa", "GPU-bb")
    run = run_spec("env", env={"NVIDIA_VISIBLE_DEVICES": ",".join(gpus)}, devices=[2, 5])
    wanted = Preparation(run=run, container=Container(image=IMAGE, gpus=gpus))
    await line.prepare(wanted)
    _socket, client, hook = engine

    await line.go(run.run_id)
    status = await wait_for_exit(line, run.run_id)

    (request,) = client.inspect_container(run.run_id)["HostConfig"]["DeviceRequests"]
    assert (request["Driver"], request["DeviceIDs"]) == ("nvidia", list(gpus))
    assert status.exit is not None
    if hook is None:
        assert "could not select device driver" in status.exit.message
        assert status.exit.failure == "node"
        return
    assert status.exit.code == 0, status.exit.message
    call = hook.calls[-1]
    assert (call["stage"], call["wanted"]) == ("prestart", "GPU-aa,GPU-bb")
    assert call["pid"] > 0
    said = (await read_log(line, run.run_id)).decode().splitlines()
    assert "NVIDIA_VISIBLE_DEVICES=GPU-aa,GPU-bb" in said
    assert not [row for row in said if row.startswith("CUDA_VISIBLE_DEVICES=")]


async def test_a_container_lists_and_opens_only_the_files_of_its_gpus(
    engine: tuple[str, docker.APIClient, NvidiaHook | None], line: DockerTransport
) -> None:
    if engine[2] is None:
        pytest.skip("needs the hook")

    said, message = await lines_of(line, "GPU-cc", "GPU-bb")

    files = ["/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia5", "/dev/nvidiactl"]
    assert sorted(row[5:] for row in said if row.startswith("sees ")) == files, message
    assert sorted(row[6:] for row in said if row.startswith("opens ")) == files


async def test_a_container_without_gpus_gets_no_file_of_a_gpu(line: DockerTransport) -> None:
    said, message = await lines_of(line)

    assert [row for row in said if row.startswith("sees ")] == ["sees /dev/nvidia*"], message
    assert "NVIDIA_VISIBLE_DEVICES=void" in said


async def test_a_gpu_that_the_hook_does_not_know_ends_the_start_with_its_message(
    engine: tuple[str, docker.APIClient, NvidiaHook | None], line: DockerTransport
) -> None:
    if engine[2] is None:
        pytest.skip("needs the hook")

    _, message = await lines_of(line, "GPU-zz")

    assert "GPU-zz: unknown device" in message


def test_podman_before_5_4_starts_a_container_without_the_requested_gpus(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    # So the probe offers no containers on GPUs there, instead of jobs that find none.
    with podman_engine(tmp_path_factory.mktemp("p")) as (_socket, client):
        release = tuple(map(int, client.version()["Version"].split(".")[:2]))
        if release >= PODMAN_RELEASE:
            pytest.skip("this release of Podman reads the request")
        wanted = docker.types.DeviceRequest(
            driver="cdi", device_ids=["nvidia.com/gpu=GPU-aa"], capabilities=[]
        )
        host = client.create_host_config(device_requests=[wanted], network_mode="none")
        made = client.create_container(IMAGE, ["/bin/sh", "-c", LOOK], host_config=host)
        client.start(made["Id"])

        code = client.wait(made["Id"], timeout=60)["StatusCode"]
        said = client.logs(made["Id"]).decode().splitlines()
        client.remove_container(made["Id"], force=True)

    assert code in (0, 1, 2)
    assert [row for row in said if row.startswith("sees ")] == ["sees /dev/nvidia*"]


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
