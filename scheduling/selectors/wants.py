"""What a job asks for, in the words that people read."""

from collections.abc import Sequence

from scheduling.core.jobspec import Demand, MemberDemand, Within

_SHAPES = {
    Within.DEVICE: "",
    Within.PCIE: "in one pcie",
    Within.SOCKET: "in one socket",
    Within.NODE: "in one node",
    Within.RACK: "in one rack",
}


def wants_in_words(demand: Demand) -> str:
    """A demand as people say it: ``2 × 4 × A100 in one node each``."""
    if len(demand.members) == 1:
        return _member(demand.members[0])
    return ", ".join(f"{member.role} {_member(member)}" for member in demand.members)


def _member(member: MemberDemand) -> str:
    count = f"{member.count} × " if member.count > 1 else ""
    text = f"{count}{member.devices} × {_types(member.device_types)}"
    shape = _SHAPES[member.within] if member.devices > 1 or member.within is Within.RACK else ""
    each = " each" if shape and member.count > 1 and member.within is not Within.RACK else ""
    pin = f" on pinned cell {member.pinned_cell}" if member.pinned_cell is not None else ""
    return f"{text} {shape}{each}".rstrip() + pin


def _types(types: Sequence[str]) -> str:
    return " or ".join(types) if types else "any device"
