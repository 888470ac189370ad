"""Resource demands of jobs, small enough to be read for every job in every round."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scheduling.core.jobspec.containers import Ipc
from scheduling.core.jobspec.requirements import NO_REQUIREMENTS, Requirements
from scheduling.core.jobspec.values import JobSpec, Within


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDemand:
    """A number of equal instances of one role.

    Attributes:
        role: name of the role.
        count: number of instances.
        devices: devices of each instance; 0 for a companion.
        device_types: accepted device types in order of preference; empty for any.
        within: cell that must contain an instance's devices (rack: those of all instances).
        cpus: processors of each instance; None for the share of its devices.
        memory: bytes of each instance; None for the share of its devices.
        image: whether it requires a container.
        pinned_cell: pinned cell that contains all instances; None for any cell of the quota.
        ports: number of ports of each instance.
        rdma: whether it requires a node with InfiniBand.
        host_ipc: whether it requires a node that is dedicated to its tenant alone.
        storages: names of the storages of the job.
        requires: minimum properties of its GPUs and their driver.
    """

    role: str
    count: int
    devices: int
    device_types: tuple[str, ...] = ()
    within: Within = Within.NODE
    cpus: float | None = None
    memory: int | None = None
    image: bool = False
    pinned_cell: str | None = None
    ports: int = 0
    rdma: bool = False
    host_ipc: bool = False
    storages: tuple[str, ...] = ()
    requires: Requirements = NO_REQUIREMENTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """A gang, placed as a unit; its members are in rank order, and its companions come last.

    Attributes:
        members: roles with devices.
        companions: roles without devices. Their instances run on the nodes of the instances with
            devices, in turn, and use processors and memory of those. In a job without devices,
            they use processors and memory that belong to no device (``core.cpu_pools``).
    """

    members: tuple[MemberDemand, ...]
    companions: tuple[MemberDemand, ...] = ()

    @property
    def roles(self) -> tuple[MemberDemand, ...]:
        """Members and companions."""
        return (*self.members, *self.companions)

    @property
    def instances(self) -> int:
        """All instances of the gang."""
        return sum(member.count for member in self.roles)

    @property
    def devices(self) -> int:
        """All devices of the gang."""
        return sum(member.count * member.devices for member in self.members)

    @property
    def has_devices(self) -> bool:
        """Whether any instance has devices."""
        return bool(self.members)

    @property
    def cpus(self) -> float:
        """Number of explicitly requested processors of all instances."""
        return sum(member.count * (member.cpus or 0.0) for member in self.roles)

    @property
    def memory(self) -> int:
        """Explicitly requested memory of all instances in bytes."""
        return sum(member.count * (member.memory or 0) for member in self.roles)

    @property
    def storages(self) -> tuple[str, ...]:
        """Names of the storages of its roles."""
        return tuple(sorted({name for member in self.roles for name in member.storages}))

    @property
    def needs_image(self) -> bool:
        """Whether any member requires a container."""
        return any(member.image for member in self.roles)

    def companion_load(self, position: int) -> tuple[float, int]:
        """Return processors and memory of the companions of one instance with devices.

        Args:
            position: index of the instance among those with devices, in rank order.
        """
        hosts = sum(member.count for member in self.members)
        cpus, memory, begin = 0.0, 0, 0
        for companion in self.companions:
            end = begin + companion.count
            first = begin + (position - begin) % hosts
            number = len(range(first, end, hosts))
            cpus += number * (companion.cpus or 0.0)
            memory += number * (companion.memory or 0)
            begin = end
        return cpus, memory

    def to_json(self) -> dict[str, Any]:
        """Return the compact document that ``from_json`` reads, with a list for each member."""
        companions = {"companions": [_row(member) for member in self.companions]}
        return {
            "members": [_row(member) for member in self.members],
            **(companions if self.companions else {}),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Demand":
        """Read what ``to_json`` wrote.

        Raises:
            ValueError: the document is malformed.
        """
        try:
            return cls(
                members=tuple(_member(row) for row in document["members"]),
                companions=tuple(_member(row) for row in document.get("companions", ())),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not the demand of a job: {error!r}") from error


def demand(spec: JobSpec) -> Demand:
    """Return the resource demand of ``spec``."""
    roles = tuple(
        MemberDemand(
            role=name,
            count=role.instances,
            devices=role.devices,
            device_types=role.device_types,
            within=role.within,
            cpus=role.cpus,
            memory=role.memory,
            image=role.image is not None,
            pinned_cell=role.pinned_cell,
            ports=sum(role.ports.values()),
            rdma=role.container.rdma,
            host_ipc=role.container.ipc is Ipc.HOST,
            storages=spec.storage_names,
            requires=role.requires,
        )
        for name, role in spec.roles.items()
    )
    return Demand(
        members=tuple(role for role in roles if role.devices),
        companions=tuple(role for role in roles if not role.devices),
    )


def _row(member: MemberDemand) -> list[Any]:
    return [
        member.role,
        member.count,
        member.devices,
        list(member.device_types),
        member.within.value,
        member.cpus,
        member.memory,
        member.image,
        *_rare(member),
    ]


def _rare(member: MemberDemand) -> tuple[Any, ...]:
    """Return the rarely used fields, which most jobs and older rows omit."""
    rights = member.rdma, member.host_ipc
    common = member.pinned_cell, member.ports, *rights, list(member.storages)
    if member.requires != NO_REQUIREMENTS:
        return *common, member.requires.to_json()
    if member.storages:
        return common
    if member.rdma or member.host_ipc:
        return member.pinned_cell, member.ports, member.rdma, member.host_ipc
    if member.ports:
        return member.pinned_cell, member.ports
    return (member.pinned_cell,) if member.pinned_cell is not None else ()


def _member(row: Sequence[Any]) -> MemberDemand:
    role, count, devices, device_types, within, cpus, memory, image, *rare = row
    if len(rare) not in (0, 1, 2, 4, 5, 6):
        raise ValueError(f"{len(row)} parts of a member")
    defaults: list[Any] = [None, 0, False, False, (), {}]
    pinned_cell, ports, rdma, host_ipc, storages, requires = [*rare, *defaults[len(rare) :]]
    return MemberDemand(
        role=role,
        count=count,
        devices=devices,
        device_types=tuple(device_types),
        within=Within(within),
        cpus=cpus,
        memory=memory,
        image=image,
        pinned_cell=pinned_cell,
        ports=int(ports),
        rdma=bool(rdma),
        host_ipc=bool(host_ipc),
        storages=tuple(storages),
        requires=Requirements(**requires) if requires else NO_REQUIREMENTS,
    )
