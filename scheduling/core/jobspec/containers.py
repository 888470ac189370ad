"""Settings of a role's container: values, readers, and checks between settings."""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from scheduling.core.jobspec.errors import DocumentPlace, RefusalError
from scheduling.core.jobspec.scalars import (
    read_bool,
    read_integer,
    read_matching,
    read_memory,
    read_string,
)
from scheduling.core.jobspec.table import (
    AMOUNT,
    TEXTS,
    Field,
    choice,
    number_schema,
    read_map,
    read_object,
    text_schema,
)
from scheduling.core.messages import sentence

_HOST_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_PATH: Final = re.compile(r"/[A-Za-z0-9._/@+-]{0,199}")
MOST_FILES: Final = 1 << 20


class ContainerUser(StrEnum):
    """The account under which a container runs: that of the node, or the image's own."""

    NODE = "node"
    IMAGE = "image"


class Ipc(StrEnum):
    """The IPC namespace of a container: private, or that of the node."""

    PRIVATE = "private"
    HOST = "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSettings:
    """Settings of the container of a role; the defaults need no special rights.

    Attributes:
        user: account of its processes.
        ipc: its IPC namespace; that of the node only on a node of one tenant.
        shm: bytes of ``/dev/shm``; None for half of the job's memory.
        rdma: whether it gets the InfiniBand devices of the node.
        nofile: limit of open files; None for the engine's.
        stack: limit of the stack in bytes; None for the engine's.
        workdir: directory in the container in which the command starts; None for the job's
            working directory.
        entrypoint: whether the image's entrypoint runs the command.
        extra_hosts: IP addresses by additional host name.
    """

    user: ContainerUser = ContainerUser.NODE
    ipc: Ipc = Ipc.PRIVATE
    shm: int | None = None
    rdma: bool = False
    nofile: int | None = None
    stack: int | None = None
    workdir: str | None = None
    entrypoint: bool = False
    extra_hosts: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        hosts = MappingProxyType(dict(sorted(self.extra_hosts.items())))
        object.__setattr__(self, "extra_hosts", hosts)

    def to_json(self) -> dict[str, Any]:
        """Return the settings that are not the default."""
        said = {one.name: getattr(self, one.name) for one in fields(self)}
        changed = {name: value for name, value in said.items() if value != _DEFAULTS[name]}
        return {
            name: value.value
            if isinstance(value, StrEnum)
            else dict(value)
            if name == "extra_hosts"
            else value
            for name, value in changed.items()
        }


NO_SETTINGS: Final = ContainerSettings()
_DEFAULTS: Final = {one.name: getattr(NO_SETTINGS, one.name) for one in fields(ContainerSettings)}


def read_container(value: object, place: DocumentPlace) -> ContainerSettings:
    """Read ``container``; errors are collected."""
    given = read_object(value, CONTAINER_FIELDS, place)
    settings = ContainerSettings(**given)
    if settings.shm is not None and settings.ipc is Ipc.HOST:
        place.child("shm").refuse(
            settings.shm, sentence("shm-of-host"), sentence("omit-shm-or-ipc"), "conflict"
        )
    return settings


def _path(value: object, _place: DocumentPlace) -> str:
    remedy = sentence("write-container-path")
    path = read_matching(value, _PATH, remedy)
    if ".." in path.split("/"):
        raise RefusalError(sentence("not-path"), remedy)
    return path


def _hosts(value: object, place: DocumentPlace) -> Mapping[str, str]:
    return read_map(
        value,
        place,
        most=64,
        words="a map of host names to IP addresses",
        key=lambda name: read_matching(name, _HOST_NAME, sentence("write-host-name")),
        read=_address,
    )


def _address(value: object, _place: DocumentPlace) -> str:
    remedy = sentence("write-ip-address")
    try:
        return str(ipaddress.ip_address(read_string(value, remedy)))
    except ValueError:
        raise RefusalError(sentence("not-ip-address"), remedy) from None


CONTAINER_FIELDS: Final = (
    Field(
        name="user",
        type="node or image",
        default="node",
        help="Account of the processes. node: that of other jobs on the node, named job in the "
        "container. image: the image's own user; the user root of an image needs a rootless "
        "container engine.",
        read=lambda value, _place: ContainerUser(
            choice(value, [one.value for one in ContainerUser])
        ),
        schema={"enum": [one.value for one in ContainerUser]},
    ),
    Field(
        name="ipc",
        type="private or host",
        default="private",
        help="IPC namespace. host: the namespace of the node, only on nodes that are dedicated to "
        "the tenant alone.",
        read=lambda value, _place: Ipc(choice(value, [one.value for one in Ipc])),
        schema={"enum": [one.value for one in Ipc]},
    ),
    Field(
        name="shm",
        type="bytes, or a string such as 8GiB",
        default="half of the memory",
        help="Size of /dev/shm. It counts as memory of the job. Not for ipc: host.",
        read=lambda value, _place: read_memory(value),
        schema=AMOUNT,
    ),
    Field(
        name="rdma",
        type="true or false",
        default="false",
        help="Give the container the InfiniBand devices of the node, the capability IPC_LOCK and "
        "unlimited locked memory. Only for gangs of several instances, on nodes with InfiniBand.",
        read=lambda value, _place: read_bool(value),
        schema={"type": "boolean"},
    ),
    Field(
        name="nofile",
        type="number",
        default="that of the container engine",
        help=f"Maximum number of open files of a process, 1024 to {MOST_FILES}.",
        read=lambda value, _place: read_integer(value, 1024, MOST_FILES),
        schema=number_schema(1024, MOST_FILES),
    ),
    Field(
        name="stack",
        type="bytes, or a string such as 64MiB",
        default="that of the container engine",
        help="Maximum size of the stack of a process.",
        read=lambda value, _place: read_memory(value),
        schema=AMOUNT,
    ),
    Field(
        name="workdir",
        type="path",
        default="the job's working directory",
        help="Directory in the container in which the command starts. The source of the job is in "
        "/tessera/work.",
        read=_path,
        schema=text_schema(200),
    ),
    Field(
        name="entrypoint",
        type="true or false",
        default="false",
        help="Run the command through the entrypoint of the image, which must execute its "
        "arguments.",
        read=lambda value, _place: read_bool(value),
        schema={"type": "boolean"},
    ),
    Field(
        name="extra_hosts",
        type="map of host name to IP address",
        default="none",
        help="Additional lines of /etc/hosts in the container; at most 64.",
        read=_hosts,
        schema=TEXTS,
    ),
)
