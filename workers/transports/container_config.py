"""The container of a run as its engine is to create it: account, limits, mounts, devices."""

from typing import Any, Final, NamedTuple

import docker
import docker.types

from scheduling.core.jobspec import NO_SETTINGS, ContainerSettings, ContainerUser, Ipc
from tessera import protocol
from tessera.inventory import BY_DEVICE_REQUEST, BY_FILES
from tessera.isolation import OWN_NETWORK, ContainerView
from tessera.protocol import ContainerRef, NodeHello, RunSpec
from tessera.storage import StorageMount, split_nfs
from workers.transports.base import Container, PrepareError

CDI_VENDOR: Final = "nvidia.com/gpu"
SHM_SHARE: Final = 2
"""The part of a job's memory that /dev/shm may take, as for plain jobs; it counts as memory of the
job. Engines give 64 MiB, and data loaders of PyTorch fail there."""
RUN_LABEL: Final = "tessera.run"
INFINIBAND: Final = "/dev/infiniband"
_ACCOUNT: Final = {
    "HOME": protocol.CONTAINER_HOME,
    "USER": protocol.CONTAINER_ACCOUNT,
    "LOGNAME": protocol.CONTAINER_ACCOUNT,
}


def container_ref(
    run: RunSpec, engine_socket: str, settings: ContainerSettings = NO_SETTINGS
) -> ContainerRef:
    """Return the names of a run's container and of the container of its own network."""
    network = f"{run.run_id}.network" if run.network == OWN_NETWORK else ""
    return ContainerRef(
        name=run.run_id,
        socket=engine_socket,
        network=network,
        hosts=dict(settings.extra_hosts) if network else {},
        own_user=settings.user is ContainerUser.IMAGE,
    )


class EngineRights(NamedTuple):
    """How the engine limits the rights of containers.

    Attributes:
        rootless: it runs without root, so that root of a container is its user.
        remapped: it maps the users of containers to others of the node.
        podman: it is Podman, which has options for binds.
    """

    rootless: bool = False
    remapped: bool = False
    podman: bool = False


ROOTFUL: Final = EngineRights()


def rights_of(engine: docker.APIClient) -> EngineRights:
    """Return how the engine limits the rights of containers."""
    options = [str(option) for option in engine.info().get("SecurityOptions") or ()]
    return EngineRights(
        rootless=any("rootless" in option for option in options),
        remapped=any("userns" in option for option in options),
        podman="podman" in str(engine.version().get("Components")).lower(),
    )


def check_settings(
    run: RunSpec, settings: ContainerSettings, view: ContainerView, rights: EngineRights
) -> None:
    """Refuse settings that this engine cannot give, or not without danger.

    Raises:
        PrepareError: the settings are refused; the message has the remedy.
    """
    has_node_ids = not (rights.rootless or rights.remapped)
    sees_node = view.binds or run.storage or run.host_ipc
    if settings.user is ContainerUser.IMAGE and has_node_ids and sees_node:
        # A user of the image has the same ID on the node, and could access the files of that user.
        raise PrepareError(
            "image-user-with-paths",
            "container.user: image is not possible here, because the container sees directories of"
            " the node, a storage or its shared memory. Omit container.user, or ask an admin for a"
            " rootless engine",
            protocol.USER,
        )
    if settings.extra_hosts and rights.podman and run.network == OWN_NETWORK:
        raise PrepareError(
            "no-extra-hosts",
            "Podman has no container.extra_hosts for a job of 1 instance. Omit them, or run the"
            " job on a node with Docker",
            protocol.USER,
        )


def container_config(
    engine: docker.APIClient,
    run: RunSpec,
    container: Container,
    hello: NodeHello,
    view: ContainerView,
    *,
    rights: EngineRights = ROOTFUL,
) -> Any:
    """Return the container to create: the run's directory and limits, no privileges.

    The job runs as the node's user, the owner of the run's directory. A rootless engine maps that
    user to root of the container, which then has no more rights than the user. With
    ``user: image``, user and home are the image's own.
    """
    settings = container.settings
    is_own = settings.user is ContainerUser.IMAGE
    script = ["/bin/sh", f"{protocol.CONTAINER_ROOT}/{protocol.COMMAND_FILE}"]
    return engine.create_container_config(
        image=container.image,
        entrypoint=None if settings.entrypoint else script,
        command=script if settings.entrypoint else [],
        user=None if is_own else ":".join(map(str, job_user(hello, rights))),
        working_dir=settings.workdir
        or f"{protocol.CONTAINER_ROOT}/{protocol.WORK_DIR}/{run.workdir}".rstrip("/"),
        environment={**({} if is_own else _ACCOUNT), **_environment_of(run)},
        labels={**container.labels, RUN_LABEL: run.run_id},
        host_config=_host_config(engine, run, container, hello, view, rights=rights),
    )


def _environment_of(run: RunSpec) -> dict[str, str]:
    """Return the variables of the job, with the paths of its container."""
    return protocol.job_environment(
        run, protocol.CONTAINER_ROOT, protocol.CONTAINER_BUNDLE, protocol.CONTAINER_CHECKPOINTS
    )


def _host_config(
    engine: docker.APIClient,
    run: RunSpec,
    container: Container,
    hello: NodeHello,
    view: ContainerView,
    *,
    rights: EngineRights,
) -> Any:
    """Return mounts, network, rights and limits of the container."""
    settings = container.settings
    is_own = settings.user is ContainerUser.IMAGE
    mounts, binds = _mounts(run, hello, view, rights)
    shm = settings.shm or run.memory_bytes // SHM_SHARE or None
    return engine.create_host_config(
        mounts=mounts,
        binds=binds,
        network_mode=_network_mode(run),
        restart_policy={"Name": "no"},
        cap_drop=["ALL"],
        cap_add=["IPC_LOCK"] if settings.rdma else None,
        devices=[
            f"{path}:{path}:rw"
            for path in (*([INFINIBAND] if settings.rdma else ()), *view.devices)
        ]
        or None,
        group_add=view.groups or None,
        ulimits=_ulimits(settings),
        extra_hosts=dict(settings.extra_hosts) if run.network != OWN_NETWORK else None,
        security_opt=["no-new-privileges"],
        privileged=False,
        init=True,
        pids_limit=view.processes,
        nano_cpus=int(run.cpus * 1e9) or None,
        mem_limit=run.memory_bytes or None,
        memswap_limit=run.memory_bytes or None,
        shm_size=None if settings.ipc is Ipc.HOST else shm,
        ipc_mode=settings.ipc.value,
        # Only the image's own user is mapped: other jobs run as the owner of their files.
        userns_mode="host" if rights.remapped and not is_own else None,
        device_requests=_gpu_request(container),
    )


def job_user(hello: NodeHello, rights: EngineRights) -> tuple[int, int]:
    """Return user and group of the job inside its container."""
    return (0, 0) if rights.rootless else (hello.uid, hello.gid)


def _ulimits(settings: ContainerSettings) -> list[docker.types.Ulimit]:
    """Return the limits that the settings change; RDMA registers memory, which locks it."""
    limits = {
        "memlock": -1 if settings.rdma else None,
        "nofile": settings.nofile,
        "stack": settings.stack,
    }
    return [
        docker.types.Ulimit(name=name, soft=limit, hard=limit)
        for name, limit in limits.items()
        if limit is not None
    ]


def _mounts(
    run: RunSpec, hello: NodeHello, view: ContainerView, rights: EngineRights
) -> tuple[list[docker.types.Mount], list[str]]:
    """Build the mounts: the run's directories, and the visible part of the node.

    Engines mount outer paths first, so an empty directory hides a part of a bind. Only Podman
    takes ``nosuid`` and ``nodev``, and only in the short form, which has no paths with colons.
    """
    root = f"{hello.root}/{protocol.RUNS_DIR}/{run.run_id}"
    mounts = [_exported(one) for one in run.storage if one.by_engine]
    binds: list[str] = []
    for outside, inside, fixed in (
        *protocol.container_mounts(root, hello.bundle, view.checkpoints),
        *((source, target, not writable) for source, target, writable in view.binds),
        *((path, path, True) for path in view.libraries),
    ):
        if rights.podman and ":" not in f"{outside}{inside}":
            binds.append(f"{outside}:{inside}:{'ro' if fixed else 'rw'},nosuid,nodev")
        else:
            mount = docker.types.Mount(target=inside, source=outside, type="bind", read_only=fixed)
            mounts.append(mount)
    return mounts, binds


def _exported(storage: StorageMount) -> docker.types.Mount:
    """Return a mount of an NFS export by the engine; its anonymous volume goes with the run."""
    server, export = split_nfs(storage.source)
    mode = "rw" if storage.writable else "ro"
    options = {
        "type": "nfs",
        "o": f"addr={server.strip('[]')},{mode},nosuid,nodev",
        "device": f":{export}",
    }
    return docker.types.Mount(
        target=storage.mount,
        source=None,
        type="volume",
        read_only=not storage.writable,
        driver_config=docker.types.DriverConfig("local", options),
    )


def _network_mode(run: RunSpec) -> str:
    """Return the network of the holder, or the node's own."""
    holder = run.container.network if run.container else ""
    return f"container:{holder}" if holder else "host"


def _gpu_request(container: Container) -> list[docker.types.DeviceRequest] | None:
    """Return the request for the GPUs, which have the numbers 0 to n - 1 in the container."""
    ids = list(container.gpus)
    if not ids or container.gpu_access == BY_FILES:
        return None
    if container.gpu_access == BY_DEVICE_REQUEST:
        return [
            docker.types.DeviceRequest(driver="nvidia", device_ids=ids, capabilities=[["gpu"]])
        ]
    names = [f"{CDI_VENDOR}={gpu}" for gpu in ids]
    return [docker.types.DeviceRequest(driver="cdi", device_ids=names, capabilities=[])]
