"""What a job asks for, in the words that people read."""

from collections.abc import Sequence

from scheduling.core.jobspec import Demand, MemberDemand, Within
from scheduling.core.messages import message, sentence
from tessera.messages import Listing, Message

_SHAPES = {
    Within.PCIE: message("in-one-pcie"),
    Within.SOCKET: message("in-one-socket"),
    Within.NODE: message("in-one-node"),
    Within.RACK: message("in-one-rack"),
}
_EACH = {
    Within.PCIE: message("in-one-pcie-each"),
    Within.SOCKET: message("in-one-socket-each"),
    Within.NODE: message("in-one-node-each"),
}


def wants_in_words(demand: Demand) -> str:
    """A demand as people say it: ``2 × 4 × A100 in one node each``."""
    if len(demand.members) == 1:
        return sentence(_member(demand.members[0]))
    members = tuple(
        message("wanted-by-role", role=member.role, wanted=_member(member))
        for member in demand.members
    )
    return sentence(message("wanted-together", members=Listing(members)))


def _member(member: MemberDemand) -> Message:
    types = _types(member.device_types)
    wanted = message("wanted-devices", devices=member.devices, types=types)
    if member.count > 1:
        wanted = message("wanted-instances", count=member.count, wanted=wanted)
    shapes = _EACH if member.count > 1 and member.within is not Within.RACK else _SHAPES
    shape = shapes.get(member.within)
    if shape is not None and (member.devices > 1 or member.within is Within.RACK):
        wanted = message("wanted-within", wanted=wanted, shape=shape)
    if member.pinned_cell is None:
        return wanted
    return message("wanted-on-pinned-cell", wanted=wanted, pinned_cell=member.pinned_cell)


def _types(types: Sequence[str]) -> Listing | Message:
    return Listing(tuple(types), "or") if types else message("any-device")
