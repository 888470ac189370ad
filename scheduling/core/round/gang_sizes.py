"""Sizes of elastic jobs: possible gangs, and the cells that each requests.

Up to the devices of one submitted instance, a job of another size is one instance with that number
of devices; beyond that it is several instances of the submitted size.
"""

from collections.abc import Iterator
from dataclasses import replace

from scheduling.core.device_types import is_display
from scheduling.core.jobspec import Demand, MemberDemand
from scheduling.core.policy_interface import Alloc, Part, Scale, Step


def scale_of(demand: Demand, least: int, most: int) -> Scale | None:
    """Return the possible sizes of a job of one role between two bounds; None if not resizable.

    Args:
        demand: the submitted gang.
        least: minimum number of devices.
        most: maximum number of devices.
    """
    if len(demand.members) != 1 or not 1 <= least <= demand.devices <= most:
        return None
    devices = demand.members[0].devices
    if most <= devices:
        return Scale(minimum=least, maximum=most)
    if least >= devices and least % devices == 0 and most % devices == 0:
        return Scale(minimum=least, maximum=most, step=Step.MULTIPLE, quantum=devices)
    powers = all(_is_power_of_two(size) for size in (devices, demand.devices))
    return Scale(minimum=least, maximum=most, step=Step.POWER_OF_TWO) if powers else None


def sized(demand: Demand, alloc: Alloc) -> Demand | None:
    """Resize the gang to the sizes and types of ``alloc``; return None if it has no such shape."""
    if [part.n for part in alloc.parts] == [m.count * m.devices for m in demand.members]:
        members = tuple(
            _on_type(member, part)
            for member, part in zip(demand.members, alloc.parts, strict=True)
        )
        return replace(demand, members=members) if members != demand.members else demand
    if len(demand.members) != 1:
        return _all_on(demand, alloc)
    shaped = [_shaped(demand.members[0], part) for part in alloc.parts]
    members = tuple(member for member in shaped if member is not None)
    return replace(demand, members=members) if len(members) == len(shaped) else None


def _all_on(demand: Demand, alloc: Alloc) -> Demand | None:
    """Restrict a gang of several roles to one type, without a resize."""
    if len(alloc.parts) != 1 or alloc.devices != demand.devices:
        return None
    members = tuple(_on_type(member, alloc.parts[0]) for member in demand.members)
    return replace(demand, members=members)


def _shaped(member: MemberDemand, part: Part) -> MemberDemand | None:
    """Shape a number of devices of one type into instances of a role."""
    if part.n % member.devices == 0:
        return replace(_on_type(member, part), count=part.n // member.devices)
    if part.n > member.devices:
        return None
    share = part.n / member.devices
    # CPUs and memory shrink with the devices; otherwise the smaller job would be refused for them.
    return replace(
        _on_type(member, part),
        count=1,
        devices=part.n,
        cpus=None if member.cpus is None else member.cpus * share,
        memory=None if member.memory is None else int(member.memory * share),
    )


def _on_type(member: MemberDemand, part: Part) -> MemberDemand:
    if part.type is None or member.device_types == (part.type,):
        return member
    if not member.device_types and is_display(part.type):
        return member  # only jobs that name a display GPU get one
    return replace(member, device_types=(part.type,))


def on_type(demand: Demand, device_type: str) -> Demand:
    """Restrict a gang to one device type."""
    kept = Part(n=0, type=device_type)
    return replace(demand, members=tuple(_on_type(member, kept) for member in demand.members))


def ranks(demand: Demand) -> Iterator[int]:
    """Yield the first rank of each member within its role: a role may be on several types."""
    begun: dict[str, int] = {}
    for member in demand.members:
        yield begun.get(member.role, 0)
        begun[member.role] = begun.get(member.role, 0) + member.count


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0
