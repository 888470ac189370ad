"""What an engine is asked for, without an engine."""

from typing import Any

import docker

from tessera import protocol
from tests.workers.transports.test_contract import a_run
from workers.transports.base import Container
from workers.transports.docker import container_config

HELLO = protocol.NodeHello(
    protocol=protocol.PROTOCOL_VERSION,
    pid=1,
    boot_id="b",
    hostname="gpu-01",
    python="3.11.0",
    home="/home/alice",
    root="/home/alice/.tessera",
    bundle="/home/alice/.tessera/x/node.pyz",
    uid=1234,
    gid=5678,
    clock=0.0,
    runs=0,
)


def config_of(container: Container, **changes: object) -> Any:
    engine = docker.APIClient(base_url="unix:///nowhere.sock", version="1.41")
    try:
        return container_config(engine, a_run("true", **changes), container, HELLO)
    finally:
        engine.close()


def test_a_container_gets_its_gpus_by_number_and_no_others() -> None:
    host = config_of(Container(image="a", gpus=(1, 3)))["HostConfig"]

    (request,) = host["DeviceRequests"]
    assert (request["Driver"], request["DeviceIDs"]) == ("nvidia", ["1", "3"])
    assert request["Capabilities"] == [["gpu"]]
    assert not request["Count"]


def test_without_gpus_none_are_asked_for() -> None:
    assert not config_of(Container(image="a"))["HostConfig"].get("DeviceRequests")


def test_a_container_is_the_nodes_user_within_its_limits() -> None:
    config = config_of(Container(image="a"), cpus=1.5, memory_bytes=1 << 30)

    host = config["HostConfig"]
    assert config["User"] == "1234:5678"
    assert (host["NanoCpus"], host["Memory"], host["MemorySwap"]) == (
        1_500_000_000,
        1 << 30,
        1 << 30,
    )
    assert host["PidsLimit"] > 0
    assert not host.get("Privileged")
    assert host["CapDrop"] == ["ALL"]


def test_what_was_not_asked_for_is_not_limited() -> None:
    host = config_of(Container(image="a"), cpus=0.0, memory_bytes=0)["HostConfig"]

    assert not host.get("NanoCpus")
    assert not host.get("Memory")
