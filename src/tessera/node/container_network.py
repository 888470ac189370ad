"""The own network of a container: a second container with the namespace and its rules.

An engine can start a container in the network of another one. So a small container without
user content is started first, the packet filter rules are loaded into its network
namespace, and only then the job's container starts in that namespace, without the capability to
change it. This works with every engine with Docker's API, including rootless engines, and does not
need root on the node.

The image of the holder is empty: it mounts the node's own ``/usr`` read-only, for the shell and
for the program that loads the rules.
"""

from __future__ import annotations

import hashlib
import io
import os
from typing import List, Sequence

from tessera.node import engine, firewall
from tessera.node.engine import EngineError
from tessera.protocol import ContainerRef, Json

REPOSITORY = "tessera.local/network"
HOLDER_LABEL = "tessera.network"
MEMORY_BYTES = 64 << 20
MOST_PROCESSES = 32
_PROGRAMS = ("bin", "sbin", "lib", "lib64", "lib32", "libx32")
_EMPTY = ("usr", "etc", "dev", "proc", "run", "sys", "tmp")
_ALTERNATIVES = "/etc/alternatives"


class NoNetworkError(Exception):
    """A container's own network cannot be created, or its rules cannot be loaded on this node."""


def create(ref: ContainerRef, ports: Sequence[int]) -> None:
    """Create the holder of a container's network with published ports, or adopt the run's own.

    Args:
        ref: the job's container, which joins the network ``ref.network``.
        ports: TCP ports, published under the same numbers on all addresses of the node.

    Raises:
        NoNetworkError: the node has no program for packet filter rules.
        EngineError: the engine refuses or cannot be reached.
    """
    if not firewall.tool():
        raise NoNetworkError("the node has neither iptables nor nft")
    image = holder_image(ref.socket)
    path = f"/containers/create?name={ref.network}"
    status, body = engine.call(ref.socket, "POST", path, body=_config(ref, image, ports))
    # If the name is in use, Docker returns 409 and Podman 500.
    holder = ContainerRef(name=ref.network, socket=ref.socket)
    if status != 201 and engine.owner(holder) != ref.name:
        raise EngineError(engine.message_of(status, body), status)


def open_network(ref: ContainerRef, ports: Sequence[int]) -> None:
    """Start the holder and load the rules; the job's container can be started after it.

    Raises:
        NoNetworkError: the rules are not in force.
        EngineError: the engine refuses or cannot be reached.
    """
    holder = ContainerRef(name=ref.network, socket=ref.socket)
    engine.order(holder, "POST", "/start", 204, 304)
    attached = _attached(engine.inspect(holder))
    script = firewall.script(firewall.rules_for(ports, attached), firewall.tool())
    code, said = engine.execute(holder, ["/bin/sh", "-c", script])
    if code:
        raise NoNetworkError(f"the network rules cannot be loaded: {said[:500]}")


def close_network(ref: ContainerRef) -> None:
    """Stop the holder, which frees the ports.

    It is removed as well if the engine allows that before the job's container is removed.
    """
    if ref.network:
        holder = ContainerRef(name=ref.network, socket=ref.socket)
        engine.ensure_dead(holder)
        try:
            engine.remove(holder)
        except EngineError:
            pass  # Podman refuses; the network is removed with the run


def _config(ref: ContainerRef, image: str, ports: Sequence[int]) -> Json:
    names = [f"{port}/tcp" for port in ports]
    return {
        "Image": image,
        "Entrypoint": ["/bin/sh", "-c", "exec sleep infinity"],
        "Cmd": [],
        "User": "0:0",
        "Labels": {engine.RUN_LABEL: ref.name, HOLDER_LABEL: "1"},
        "ExposedPorts": {name: {} for name in names},
        "HostConfig": {
            "NetworkMode": "bridge",
            "PortBindings": {
                name: [{"HostIp": "", "HostPort": str(port)}]
                for name, port in zip(names, ports)  # noqa: B905 - strict came with Python 3.10
            },
            "Binds": node_programs(),
            "ReadonlyRootfs": True,
            "CapDrop": ["ALL"],
            "CapAdd": ["NET_ADMIN"],
            "SecurityOpt": ["no-new-privileges", "label=disable"],
            "Memory": MEMORY_BYTES,
            "PidsLimit": MOST_PROCESSES,
            "RestartPolicy": {"Name": "no"},
            "ExtraHosts": [f"{name}:{address}" for name, address in ref.hosts.items()],
        },
    }


def node_programs() -> List[str]:
    """Return the binds of the node's programs and libraries into the holder."""
    places = [f"/{name}" for name in _PROGRAMS]
    own = [place for place in places if os.path.isdir(place) and not os.path.islink(place)]
    shown = ["/usr", *own, *([_ALTERNATIVES] if os.path.isdir(_ALTERNATIVES) else [])]
    return [f"{place}:{place}:ro" for place in shown]


def _attached(found: Json) -> List[str]:
    """Return the networks of the holder's interfaces."""
    import ipaddress  # noqa: PLC0415 - costs start-up time that only this path needs

    networks = []
    for one in (found.get("NetworkSettings", {}).get("Networks") or {}).values():
        for name, length in (
            ("IPAddress", "IPPrefixLen"),
            ("GlobalIPv6Address", "GlobalIPv6PrefixLen"),
        ):
            address, prefix = one.get(name), one.get(length)
            if address and prefix:
                networks.append(str(ipaddress.ip_network(f"{address}/{prefix}", strict=False)))
    return networks


def holder_image(socket: str) -> str:
    """Return the name of the holder's image, which is imported if it is missing."""
    archive = _archive()
    name = f"{REPOSITORY}:{hashlib.sha256(archive).hexdigest()[:16]}"
    status, _ = engine.call(socket, "GET", f"/images/{name}/json")
    if status == 200:
        return name
    engine.import_image(socket, archive, name)
    return name


def _archive() -> bytes:
    """Build an archive of a root with only the mount points of the node's directories."""
    import tarfile  # noqa: PLC0415 - costs start-up time that only this path needs

    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in (*_EMPTY, _ALTERNATIVES[1:], *_PROGRAMS):
            entry = tarfile.TarInfo(name)
            place = f"/{name}"
            if name in _PROGRAMS and not os.path.isdir(place):
                continue
            entry.mode = 0o755
            if os.path.islink(place) and name in _PROGRAMS:
                entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(place)
            else:
                entry.type = tarfile.DIRTYPE
            archive.addfile(entry)
    return content.getvalue()
