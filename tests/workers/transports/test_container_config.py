"""What an engine is asked for, without an engine."""

from dataclasses import replace
from typing import Any

import docker
import pytest

from scheduling.core.jobspec import ContainerSettings, ContainerUser, Ipc
from tessera import protocol
from tessera.inventory import BY_CDI_INDEX, BY_CDI_UUID, BY_FILES
from tessera.isolation import OWN_NETWORK, ContainerView
from tests.support.transport_runs import run_spec
from workers.transports.base import Container
from workers.transports.container_config import (
    ROOTFUL,
    EngineRights,
    container_config,
    container_ref,
)

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


VIEW = ContainerView(checkpoints="/home/alice/.tessera/checkpoints/local/7")


def config_of(
    container: Container,
    *,
    rights: EngineRights = ROOTFUL,
    view: ContainerView = VIEW,
    **changes: object,
) -> Any:
    engine = docker.APIClient(base_url="unix:///nowhere.sock", version="1.41")
    run = run_spec("true", **changes)
    run = replace(run, container=container_ref(run, "/nowhere.sock", container.settings))
    try:
        return container_config(engine, run, container, HELLO, view, rights=rights)
    finally:
        engine.close()


def test_a_container_gets_its_gpus_by_uuid_and_no_others() -> None:
    host = config_of(Container(image="a", gpus=("GPU-aa", "GPU-cc")))["HostConfig"]

    (request,) = host["DeviceRequests"]
    assert (request["Driver"], request["DeviceIDs"]) == ("nvidia", ["GPU-aa", "GPU-cc"])
    assert request["Capabilities"] == [["gpu"]]
    assert not request["Count"]


@pytest.mark.parametrize(("access", "gpu"), [(BY_CDI_UUID, "GPU-aa"), (BY_CDI_INDEX, "3")])
def test_devices_of_a_cdi_specification_are_requested_by_their_names(
    access: str, gpu: str
) -> None:
    container = Container(image="a", gpus=(gpu,), gpu_access=access)

    (request,) = config_of(container)["HostConfig"]["DeviceRequests"]

    assert (request["Driver"], request["DeviceIDs"]) == ("cdi", [f"nvidia.com/gpu={gpu}"])
    assert not request["Count"]


def test_gpus_of_other_vendors_are_their_files_with_the_groups_of_their_files() -> None:
    view = replace(
        VIEW,
        devices=["/dev/kfd", "/dev/dri/renderD129"],
        groups=[109],
        libraries=["/usr/local/Ascend/driver"],
    )
    container = Container(image="a", gpus=("GPU-aa",), gpu_access=BY_FILES)

    host = config_of(container, view=view)["HostConfig"]

    assert [device["PathOnHost"] for device in host["Devices"]] == view.devices
    assert {device["CgroupPermissions"] for device in host["Devices"]} == {"rw"}
    assert host["GroupAdd"] == ["109"]
    assert not host.get("DeviceRequests")
    (library,) = [one for one in host["Mounts"] if one["Source"] == "/usr/local/Ascend/driver"]
    assert (library["Target"], library["ReadOnly"]) == (library["Source"], True)
    assert ContainerView.from_json(view.to_json()) == view
    assert not config_of(container)["HostConfig"].get("GroupAdd")


def test_shared_memory_is_half_of_the_memory_of_the_job() -> None:
    host = config_of(Container(image="a"), memory_bytes=1 << 30)["HostConfig"]

    assert (host["ShmSize"], host["IpcMode"]) == (1 << 29, "private")
    assert not config_of(Container(image="a"), memory_bytes=0)["HostConfig"].get("ShmSize")


def test_a_job_finds_a_home_that_it_can_write_unless_it_names_another() -> None:
    found = config_of(Container(image="a"))
    named = config_of(Container(image="a"), env={"HOME": "/srv/scratch"})

    assert "HOME=/tessera/home" in found["Env"]
    assert "HOME=/srv/scratch" in named["Env"]
    assert "HOME=/tessera/home" not in named["Env"]


def test_podman_mounts_directories_without_set_uid_and_device_files() -> None:
    view = replace(VIEW, binds=[("/mnt/data", "/srv/data", False), ("/mnt/a:b", "/srv/c", True)])
    host = config_of(Container(image="a"), rights=EngineRights(podman=True), view=view)[
        "HostConfig"
    ]

    assert "/mnt/data:/srv/data:ro,nosuid,nodev" in host["Binds"]
    assert len(host["Binds"]) == 7
    (mount,) = host["Mounts"]
    assert (mount["Source"], mount["Target"]) == ("/mnt/a:b", "/srv/c")


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
    assert host["PidsLimit"] == VIEW.processes
    assert not host.get("Privileged")
    assert host["CapDrop"] == ["ALL"]


def test_what_was_not_asked_for_is_not_limited() -> None:
    host = config_of(Container(image="a"), cpus=0.0, memory_bytes=0)["HostConfig"]

    assert not host.get("NanoCpus")
    assert not host.get("Memory")


def test_a_container_joins_the_holder_of_its_network_or_the_node() -> None:
    own = config_of(Container(image="a"), network=OWN_NETWORK, ports=[15001])
    shared = config_of(Container(image="a"), ports=[15001])

    run_id = own["Labels"]["tessera.run"]
    assert own["HostConfig"]["NetworkMode"] == f"container:{run_id}.network"
    assert shared["HostConfig"]["NetworkMode"] == "host"
    assert not own["HostConfig"].get("PortBindings")


def test_root_of_a_rootless_engine_is_the_nodes_user() -> None:
    assert config_of(Container(image="a"), rights=EngineRights(rootless=True))["User"] == "0:0"


def test_settings_of_a_role_change_limits_shared_memory_directory_and_hosts() -> None:
    settings = ContainerSettings(
        shm=3 << 30,
        nofile=65_536,
        stack=64 << 20,
        workdir="/workspace",
        extra_hosts={"data.example.org": "10.1.0.5"},
    )
    config = config_of(Container(image="a", settings=settings), memory_bytes=1 << 30)

    host = config["HostConfig"]
    assert host["ShmSize"] == 3 << 30
    assert config["WorkingDir"] == "/workspace"
    assert host["ExtraHosts"] == ["data.example.org:10.1.0.5"]
    assert {(limit["Name"], limit["Soft"], limit["Hard"]) for limit in host["Ulimits"]} == {
        ("nofile", 65_536, 65_536),
        ("stack", 64 << 20, 64 << 20),
    }
    assert not host.get("CapAdd")
    assert not host.get("Devices")


def test_only_rdma_adds_devices_a_capability_and_locked_memory() -> None:
    host = config_of(Container(image="a", settings=ContainerSettings(rdma=True)))["HostConfig"]

    (device,) = host["Devices"]
    assert device["PathOnHost"] == device["PathInContainer"] == "/dev/infiniband"
    assert device["CgroupPermissions"] == "rw"
    assert (host["CapDrop"], host["CapAdd"]) == (["ALL"], ["IPC_LOCK"])
    (limit,) = host["Ulimits"]
    assert (limit["Name"], limit["Soft"], limit["Hard"]) == ("memlock", -1, -1)


def test_a_container_in_the_ipc_namespace_of_the_node_has_its_shared_memory() -> None:
    settings = ContainerSettings(ipc=Ipc.HOST)
    host = config_of(Container(image="a", settings=settings), memory_bytes=1 << 30)["HostConfig"]

    assert host["IpcMode"] == "host"
    assert not host.get("ShmSize")


def test_hosts_of_a_container_with_its_own_network_are_those_of_the_holder() -> None:
    settings = ContainerSettings(extra_hosts={"data": "10.1.0.5"})
    run = run_spec("true", network=OWN_NETWORK)
    config = config_of(Container(image="a", settings=settings), network=OWN_NETWORK)

    assert container_ref(run, "/s", settings).hosts == {"data": "10.1.0.5"}
    assert not config["HostConfig"].get("ExtraHosts")


def test_the_entrypoint_of_an_image_runs_the_command_where_it_is_kept() -> None:
    script = ["/bin/sh", "/tessera/job/command.sh"]
    kept = config_of(Container(image="a", settings=ContainerSettings(entrypoint=True)))
    replaced = config_of(Container(image="a"))

    assert (kept["Entrypoint"], kept["Cmd"]) == (None, script)
    assert (replaced["Entrypoint"], replaced["Cmd"]) == (script, [])


def test_the_own_user_of_an_image_has_its_own_home() -> None:
    settings = ContainerSettings(user=ContainerUser.IMAGE)
    config = config_of(Container(image="a", settings=settings), env={"A": "b"})

    assert config["User"] is None
    assert not [one for one in config["Env"] if one.startswith(("HOME=", "USER=", "LOGNAME="))]
    assert container_ref(run_spec("true"), "/s", settings).own_user


@pytest.mark.parametrize(
    ("user", "mode"), [(ContainerUser.NODE, "host"), (ContainerUser.IMAGE, None)]
)
def test_under_mapped_user_ids_only_the_user_of_an_image_is_mapped(
    user: ContainerUser, mode: str | None
) -> None:
    container = Container(image="a", settings=ContainerSettings(user=user))
    host = config_of(container, rights=EngineRights(remapped=True))["HostConfig"]

    assert host.get("UsernsMode") == mode


def test_a_container_shows_the_visible_paths_of_the_node() -> None:
    binds = [("/mnt/data", "/srv/data", False), ("/srv/scratch", "/srv/scratch", True)]
    view = replace(VIEW, binds=binds)
    mounts = config_of(Container(image="a"), view=view)["HostConfig"]["Mounts"]

    found = {mount["Target"]: mount for mount in mounts}
    assert found["/srv/data"]["Source"] == "/mnt/data"
    assert found["/srv/data"]["ReadOnly"]
    assert found[protocol.CONTAINER_CHECKPOINTS]["Source"] == VIEW.checkpoints
    assert not found["/srv/scratch"].get("ReadOnly")
