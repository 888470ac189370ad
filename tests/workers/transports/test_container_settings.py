"""Settings of a role's container, as the job finds them, and the own user of an image."""

import asyncio
import os
import signal
import stat
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import docker
import docker.errors
import pytest

from scheduling.core.jobspec import ContainerSettings, ContainerUser, Ipc
from tessera import protocol
from tessera.isolation import VisiblePath
from tessera.node import container_files, fence
from tests.support.docker_engine import IMAGE, docker_engine
from tests.support.podman_engine import podman_engine
from tests.support.ssh_node import SshNode, ssh_node
from tests.support.transport_runs import DEADLINE, read_log, run_spec, wait_for_exit
from tests.workers.transports.conftest import bundle
from workers.transports.base import Container, Preparation, PrepareError
from workers.transports.container_accounts import archive_of
from workers.transports.docker import DockerTransport

pytestmark = pytest.mark.docker
ENGINES = {"docker": docker_engine, "podman": podman_engine}
OWN = ContainerSettings(user=ContainerUser.IMAGE)


@pytest.fixture(scope="module", params=sorted(ENGINES))
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, docker.APIClient]]:
    with ENGINES[request.param](tmp_path_factory.mktemp("d")) as found:
        yield found


@pytest.fixture
def client(engine: tuple[str, docker.APIClient]) -> docker.APIClient:
    return engine[1]


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[SshNode]:
    async with ssh_node(tmp_path) as found:
        yield found


@pytest.fixture
async def line(
    engine: tuple[str, docker.APIClient], node: SshNode
) -> AsyncIterator[DockerTransport]:
    line = DockerTransport(node.address, bundle(), engine_socket=engine[0])
    await line.open()
    yield line
    await line.close()


def wanted(
    command: str, settings: ContainerSettings, image: str = IMAGE, **changes: object
) -> Preparation:
    container = Container(image=image, settings=settings)
    return Preparation(
        run=run_spec(command, **changes), container=container, secrets={"token": "s3cr3t"}
    )


async def run(line: DockerTransport, asked: Preparation) -> str:
    """Output of a job that ends with 0."""
    await line.prepare(asked)
    await line.go(asked.run.run_id)
    status = await wait_for_exit(line, asked.run.run_id)
    said = (await read_log(line, asked.run.run_id)).decode()
    assert status.exit is not None
    assert status.exit.code == 0, (status.exit.message, said)
    return said


def image_with(client: docker.APIClient, passwd: bytes | None, **config: Any) -> str:
    """An image of its own with an account file and a configuration."""
    made = client.create_container(IMAGE, ["/bin/sh"])
    if passwd is not None:
        client.put_archive(made, "/", archive_of("etc/passwd", passwd))
    name = f"localhost/tessera-test/{uuid.uuid4().hex}"
    changes = [f"{key} {value}" for key, value in config.items()]
    client.commit(made, name, tag="1", changes=changes)
    client.remove_container(made)
    return f"{name}:1"


def is_podman(client: docker.APIClient) -> bool:
    return "podman" in str(client.version()).lower()


async def test_a_job_finds_the_limits_the_directory_and_the_hosts_of_its_settings(
    line: DockerTransport, client: docker.APIClient
) -> None:
    # Podman raises all limits if one is given, which this machine does not allow to its root.
    limits: dict[str, Any] = {} if is_podman(client) else {"nofile": 1024, "stack": 4 << 20}
    settings = ContainerSettings(
        **limits,
        shm=48 << 20,
        workdir="/etc",
        entrypoint=True,
        extra_hosts={"data.example.org": "10.1.0.5"},
    )
    image = image_with(
        client, None, ENTRYPOINT='["/bin/sh", "-c", "echo entry; exec \\"$@\\"", "e"]'
    )
    look = "echo at $PWD; cat /proc/self/limits /proc/mounts /etc/hosts"

    said = (await run(line, wanted(look, settings, image))).splitlines()

    assert said[:2] == ["entry", "at /etc"]
    found = {row[:26].strip(): row[26:].split()[:2] for row in said if row.startswith("Max ")}
    if limits:
        assert found["Max open files"] == ["1024", "1024"]
        assert found["Max stack size"] == [str(4 << 20)] * 2
    (shared,) = [row for row in said if " /dev/shm " in row]
    assert f"size={48 << 10}k" in shared
    assert "10.1.0.5 data.example.org" in {" ".join(row.split()) for row in said}


@pytest.mark.parametrize("ipc", list(Ipc))
async def test_the_ipc_namespace_is_that_of_the_node_only_where_it_is_asked_for(
    line: DockerTransport, ipc: Ipc
) -> None:
    look = "/usr/bin/readlink /proc/self/ns/ipc"
    asked = wanted(look, ContainerSettings(ipc=ipc), visible_paths=[VisiblePath("/usr")])

    said = await run(line, asked)

    assert (said.strip() == str(Path("/proc/self/ns/ipc").readlink())) == (ipc is Ipc.HOST)


async def test_a_job_gains_nothing_by_set_uid_files_and_device_files_of_its_directories(
    line: DockerTransport, client: docker.APIClient
) -> None:
    asked = wanted("cat /proc/self/status /proc/mounts", ContainerSettings())

    said = (await run(line, asked)).splitlines()

    assert "NoNewPrivs:\t1" in said
    assert "CapBnd:\t0000000000000000" in said
    (mount,) = [row.split() for row in said if " /tessera/work " in row]
    if is_podman(client):
        assert {"nosuid", "nodev"} <= set(mount[3].split(","))


async def test_the_own_user_of_an_image_reads_and_writes_its_run_and_leaves_no_file_behind(
    line: DockerTransport, client: docker.APIClient, node: SshNode, tmp_path: Path
) -> None:
    passwd = b"root:x:0:0::/:/bin/sh\njovyan:x:1234:100::/home/jovyan:/bin/sh\n"
    image = image_with(client, passwd, USER="jovyan")
    command = (
        "umask 077; id -u; echo $HOME; cat $TESSERA_JOB_SECRETS_DIR/token; echo;"
        " for place in . /tessera/home /tessera/job $TESSERA_JOB_CHECKPOINT_DIR;"
        " do echo mine > $place/file || exit 1; done; echo '{}' >> $TESSERA_JOB_REPORTS"
    )
    asked = wanted(command, OWN, image)
    run_dir = tmp_path / "home" / ".tessera" / protocol.RUNS_DIR / asked.run.run_id

    said = await run(line, asked)
    left = list((tmp_path / "home" / ".tessera").rglob("file"))

    assert said.splitlines() == ["1234", "/home/jovyan", "s3cr3t"]
    assert len(left) == 4
    assert {path.stat().st_uid for path in left} == {os.getuid()}
    assert stat.S_IMODE(run_dir.stat().st_mode) == 0o700
    names = {name for found in client.containers(all=True) for name in found["Names"]}
    assert not [name for name in names if name.endswith(".files")]
    await line.remove(asked.run.run_id)
    assert await line.runs() == []


FENCE_DEADLINE = fence.CONTAINER_SECONDS + fence.WRITER_SECONDS + container_files.FENCE_SECONDS
WRITES_AND_WAITS = (
    "umask 077; for place in . /tessera/home /tessera/job $TESSERA_JOB_CHECKPOINT_DIR;"
    " do echo mine > $place/file || exit 1; done; echo ready; sleep 1000"
)


async def start_and_kill_the_runner(line: DockerTransport, asked: Preparation) -> None:
    """Start a run, and kill its runner once the job has written its files."""
    await line.prepare(asked)
    running = await line.go(asked.run.run_id)
    async with asyncio.timeout(DEADLINE):
        while b"ready" not in await read_log(line, asked.run.run_id):
            await asyncio.sleep(0.05)
    assert running.runner_pid
    os.kill(running.runner_pid, signal.SIGKILL)


async def test_a_fence_gives_the_files_of_an_own_user_back_if_the_runner_is_killed(
    line: DockerTransport, client: docker.APIClient, tmp_path: Path
) -> None:
    asked = wanted(WRITES_AND_WAITS, OWN, image_with(client, b"", USER="1234"))
    await start_and_kill_the_runner(line, asked)

    async with asyncio.timeout(FENCE_DEADLINE):
        while not (status := (await line.runs())[0]).exit:
            await asyncio.sleep(0.1)
    left = list((tmp_path / "home" / ".tessera").rglob("file"))

    assert status.exit.cause == protocol.CAUSE_LOST
    assert len(left) == 4
    assert {path.stat().st_uid for path in left} == {os.getuid()}
    await line.remove(asked.run.run_id)


async def test_a_removal_takes_over_files_that_were_not_given_back(
    line: DockerTransport, client: docker.APIClient, tmp_path: Path
) -> None:
    asked = wanted("true", OWN, image_with(client, b"", USER="1234"))
    work = tmp_path / "home" / ".tessera" / protocol.RUNS_DIR / asked.run.run_id / "work"
    await run(line, asked)
    (work / "foreign").touch()
    os.chown(work / "foreign", 1234, 1234)

    with (work / "foreign").open() as file:
        await line.remove(asked.run.run_id)
        owner = os.fstat(file.fileno()).st_uid

    assert owner == os.getuid()
    assert await line.runs() == []


@pytest.mark.parametrize(
    ("user", "passwd"),
    [
        ("", b""),
        ("0", b""),
        ("00", b""),
        ("root", b"root:x:0:0::/:/bin/sh\n"),
        ("toor", b"toor:x:0:0::/:/bin/sh\n"),
        ("junk", b"junk:x:abc:0::/:/bin/sh\n"),
        ("1234", b"1234:x:0:0::/:/bin/sh\n"),
        ("twice", b"twice:x:1234:0::/:/bin/sh\ntwice:x:0:0::/:/bin/sh\n"),
        ("absent", b"root:x:0:0::/:/bin/sh\n"),
    ],
)
async def test_an_image_whose_user_is_or_may_be_root_is_refused_with_a_remedy(
    line: DockerTransport, client: docker.APIClient, user: str, passwd: bytes
) -> None:
    image = image_with(client, passwd, **({"USER": user} if user else {}))
    asked = wanted("id", OWN, image)

    with pytest.raises(PrepareError, match=r"rootless|unknown user") as refused:
        await line.prepare(asked)

    if user not in {"junk", "absent"} or refused.value.code != "engine-refused":
        # Podman refuses by itself to create a container for a user that its image does not have.
        assert (refused.value.code, refused.value.failure_class) == ("image-needs-root", "user")
    with pytest.raises(docker.errors.NotFound):
        client.inspect_container(asked.run.run_id)
    assert await line.runs() == []


async def test_an_own_user_cannot_pass_for_the_owner_of_files_of_the_node(
    line: DockerTransport, client: docker.APIClient
) -> None:
    image = image_with(client, b"", USER="1234")
    asked = wanted("id", OWN, image, visible_paths=[VisiblePath("/usr")])

    with pytest.raises(PrepareError, match=r"Omit container\.user") as refused:
        await line.prepare(asked)

    assert refused.value.code == "image-user-with-paths"


async def test_a_cancelled_run_leaves_no_container_although_the_probe_finds_no_engine(
    line: DockerTransport, node: SshNode, client: docker.APIClient
) -> None:
    asked = wanted("true", ContainerSettings())
    await line.prepare(asked)
    later = DockerTransport(node.address, bundle())
    await later.open()

    await later.cancel(asked.run.run_id)

    await later.close()
    with pytest.raises(docker.errors.NotFound):
        client.inspect_container(asked.run.run_id)
    assert await line.runs() == []
