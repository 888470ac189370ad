"""Containers in a network of their own: what they reach, and who reaches them."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import docker
import pytest

from scheduling.core.jobspec import ContainerSettings
from tessera import protocol
from tessera.isolation import OWN_NETWORK, SHARED_NETWORK, VisiblePath
from tessera.node.tracking.endpoint import OWN_PORT
from tests.support.docker_engine import IMAGE, docker_engine
from tests.support.network_namespaces import (
    METADATA,
    NODE,
    WORLD,
    Namespace,
    greeting,
    listener,
    node_in_world,
)
from tests.support.podman_engine import podman_engine
from tests.support.ssh_node import ssh_node
from tests.support.transport_runs import DEADLINE, read_log, run_spec, stop_run, wait_for_exit
from tests.workers.transports.conftest import bundle
from workers.transports.base import Container, Preparation, PrepareError
from workers.transports.docker import DockerTransport

pytestmark = pytest.mark.docker
ENGINES = {"docker": docker_engine, "podman": podman_engine}
PORT, OTHER_PORT, INNER_PORT = 15001, 15002, 15003
CONNECT = (
    "perl -MIO::Socket::INET -e '"
    "for (@ARGV) {{ $s = IO::Socket::INET->new(PeerAddr => $_, Timeout => 3);"
    ' print "$_ ", ($s ? "open" : "closed"), "\\n" }}\' {}'
)
SERVE = (
    "perl -MIO::Socket::INET -e '"
    "$s = IO::Socket::INET->new(LocalPort => {}, Listen => 5, ReuseAddr => 1) or die $!;"
    ' $| = 1; print "ready\\n"; while ($c = $s->accept) {{ print $c "job\\n"; close $c }}\''
)


@pytest.fixture(scope="module")
def places() -> Iterator[tuple[Namespace, Namespace]]:
    with node_in_world() as found:
        yield found


@pytest.fixture(scope="module", params=sorted(ENGINES))
def engine(
    request: pytest.FixtureRequest,
    places: tuple[Namespace, Namespace],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[str, docker.APIClient]]:
    place = tmp_path_factory.mktemp("d")
    with ENGINES[request.param](place, prefix=places[0].prefix) as found:
        yield found


@pytest.fixture
async def line(
    engine: tuple[str, docker.APIClient], places: tuple[Namespace, Namespace], tmp_path: Path
) -> AsyncIterator[DockerTransport]:
    async with ssh_node(tmp_path, prefix=places[0].prefix) as node:
        line = DockerTransport(node.address, bundle(), engine_socket=engine[0])
        await line.open()
        yield line
        await line.close()


def wanted(command: str, *, network: str = OWN_NETWORK, **changes: object) -> Preparation:
    run = run_spec(command, network=network, visible_paths=[VisiblePath("/usr")], **changes)
    return Preparation(run=run, container=Container(image=IMAGE, tenant="vision"))


def address_of(engine: tuple[str, docker.APIClient], run_id: str) -> tuple[str, str]:
    """The address of a job in its own network, and that of the gateway on the node."""
    found = engine[1].inspect_container(f"{run_id}.network")["NetworkSettings"]["Networks"]
    (network,) = found.values()
    return network["IPAddress"], network["Gateway"]


async def started(line: DockerTransport, asked: Preparation) -> str:
    run_id = asked.run.run_id
    await line.prepare(asked)
    await line.go(run_id)
    return run_id


async def reached(line: DockerTransport, *targets: str, network: str = OWN_NETWORK) -> set[str]:
    """Which of the targets a job connects to."""
    asked = wanted(CONNECT.format(" ".join(targets)), network=network)
    run_id = await started(line, asked)
    status = await wait_for_exit(line, run_id)
    said = dict(row.split() for row in (await read_log(line, run_id)).decode().splitlines())
    await line.remove(run_id)
    assert status.network == network
    assert set(said) == set(targets)
    return {target for target, found in said.items() if found == "open"}


async def test_additional_hosts_are_known_in_an_own_network_or_refused(
    line: DockerTransport, engine: tuple[str, docker.APIClient]
) -> None:
    settings = ContainerSettings(extra_hosts={"data.example.org": "10.1.0.5"})
    run = run_spec("cat /etc/hosts", network=OWN_NETWORK)
    container = Container(image=IMAGE, tenant="vision", settings=settings)

    if "podman" in str(engine[1].version()).lower():
        with pytest.raises(PrepareError, match="Omit them") as refused:
            await line.prepare(Preparation(run=run, container=container))
        assert refused.value.code == "no-extra-hosts"
        return
    await started(line, Preparation(run=run, container=container))
    await wait_for_exit(line, run.run_id)

    said = (await read_log(line, run.run_id)).decode().splitlines()
    assert ["10.1.0.5", "data.example.org"] in [row.split() for row in said]


async def ready(line: DockerTransport, run_id: str) -> None:
    async with asyncio.timeout(DEADLINE):
        while b"ready" not in await read_log(line, run_id):
            await asyncio.sleep(0.05)


async def test_a_job_reaches_the_world_but_neither_node_nor_metadata(
    line: DockerTransport,
    engine: tuple[str, docker.APIClient],
    places: tuple[Namespace, Namespace],
) -> None:
    node, world = places
    other = await started(line, wanted("sleep 600"))  # Podman's gateway comes with a container
    _, gateway = address_of(engine, other)
    with ExitStack() as stack:
        service = stack.enter_context(listener(world, WORLD, 443))
        hidden = [
            stack.enter_context(listener(world, METADATA, 80)),
            stack.enter_context(listener(world, "100.100.100.200", 80)),
            stack.enter_context(listener(node, "127.0.0.1", 5432)),
            stack.enter_context(listener(node, NODE, 6379)),
            stack.enter_context(listener(node, gateway, 6380)),
        ]

        alone = await reached(line, service, *hidden)
        shared = await reached(line, service, *hidden, network=SHARED_NETWORK)

    assert alone == {service}
    assert shared == {service, *hidden}
    await stop_run(line, other)


async def test_declared_ports_are_published_and_no_others(
    line: DockerTransport, places: tuple[Namespace, Namespace]
) -> None:
    node, world = places
    command = f"{SERVE.format(OTHER_PORT)} & {SERVE.format(PORT)}"
    run_id = await started(line, wanted(command, ports=[PORT]))
    await ready(line, run_id)

    assert greeting(world, NODE, PORT) == "job\n"
    assert greeting(node, "127.0.0.1", PORT) == "job\n"
    assert greeting(world, NODE, OTHER_PORT) == ""

    await stop_run(line, run_id)
    assert greeting(node, "127.0.0.1", PORT) == ""


async def test_ports_of_other_jobs_are_out_of_reach(
    line: DockerTransport, engine: tuple[str, docker.APIClient]
) -> None:
    command = f"{SERVE.format(INNER_PORT)} & {SERVE.format(PORT)}"
    run_id = await started(line, wanted(command, ports=[PORT]))
    await ready(line, run_id)
    inside, gateway = address_of(engine, run_id)
    targets = [f"{inside}:{INNER_PORT}"]
    targets += [f"{address}:{PORT}" for address in (inside, NODE, gateway)]

    assert await reached(line, *targets) == set()
    assert await reached(line, f"{inside}:{INNER_PORT}", network=SHARED_NETWORK) == set()

    await stop_run(line, run_id)


async def test_loopback_inside_a_job_works_and_its_rules_are_beyond_it(
    line: DockerTransport,
) -> None:
    target = f"127.0.0.1:{INNER_PORT}"
    connect = CONNECT.format(target)
    command = (
        f"{SERVE.format(INNER_PORT)} & sleep 1; {connect};"
        " /usr/sbin/iptables -F && echo flushed; kill %1"
    )
    run_id = await started(line, wanted(command))
    await wait_for_exit(line, run_id)

    said = (await read_log(line, run_id)).decode()
    assert f"{target} open" in said
    assert "flushed" not in said


async def test_the_end_of_a_run_leaves_no_holder(
    line: DockerTransport, engine: tuple[str, docker.APIClient]
) -> None:
    cancelled, run = wanted("true"), wanted("true")
    await line.prepare(cancelled)
    await line.prepare(cancelled)
    await line.cancel(cancelled.run.run_id)
    run_id = await started(line, run)
    await wait_for_exit(line, run_id)
    await line.remove(run_id)

    names = {name for found in engine[1].containers(all=True) for name in found["Names"]}
    assert not [name for name in names if cancelled.run.run_id in name or run_id in name]


async def test_the_job_does_not_start_when_its_rules_cannot_be_loaded(
    line: DockerTransport, engine: tuple[str, docker.APIClient]
) -> None:
    asked = wanted("echo started")
    await line.prepare(asked)
    holder = f"{asked.run.run_id}.network"
    engine[1].rename(holder, f"{holder}.away")

    await line.go(asked.run.run_id)
    status = await wait_for_exit(line, asked.run.run_id)

    assert status.exit is not None
    assert status.exit.cause == "start-failed"
    assert b"started" not in await read_log(line, asked.run.run_id)
    await line.remove(asked.run.run_id)
    engine[1].remove_container(f"{holder}.away", force=True)


TRACK = r"""perl -MIO::Socket::INET -e '
sub call { my ($path, $body) = @_;
  $ENV{MLFLOW_TRACKING_URI} =~ m{//(.*)} or die "no address";
  my $s = IO::Socket::INET->new(PeerAddr => $1, Timeout => 10) or die "not served: $!";
  print $s "POST /api/2.0/mlflow/$path HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n",
    "Content-Length: ", length($body), "\r\n\r\n$body";
  my $all = "";
  until ($all =~ /Content-Length: (\d+).*?\r\n\r\n(.*)/is and length($2) >= $1) {
    sysread($s, $all, 65536, length $all) or last }
  $all =~ m{^HTTP/1.1 200} or die $all; $all }
call("runs/create", q({"experiment_id": "0", "run_name": "raw"})) =~ /"run_id": ?"(\w+)"/ or die;
call("runs/log-batch", qq({"run_id": "$1", "metrics": [
  {"key": "loss", "value": 0.25, "step": 7, "timestamp": 1000}]}));
print "reported to $ENV{MLFLOW_TRACKING_URI}\n"'
"""


async def test_a_job_in_a_container_reports_to_the_tracking_endpoint(
    line: DockerTransport,
) -> None:
    run_id = await started(line, wanted(TRACK))
    status = await wait_for_exit(line, run_id)
    said = (await read_log(line, run_id)).decode()
    stored = await line.read(run_id, protocol.STREAM_REPORTS, offset=0, limit=1 << 20)
    await line.remove(run_id)

    assert status.exit is not None
    assert status.exit.code == 0, said
    assert said == f"reported to http://127.0.0.1:{OWN_PORT}\n"
    found = [json.loads(text) for text in stored.data.splitlines()]
    points = [point for one in found for point in one.get("points", ())]
    assert points == [[7, 1.0, None, {"loss": 0.25}]]


async def test_a_container_without_an_own_network_has_no_tracking_endpoint(
    line: DockerTransport,
) -> None:
    run_id = await started(line, wanted('echo "[$MLFLOW_TRACKING_URI]"', network=SHARED_NETWORK))
    await wait_for_exit(line, run_id)

    assert (await read_log(line, run_id)).decode() == "[]\n"
