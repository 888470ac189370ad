"""The two ports that OpenPAI makes for each task unasked, for jobs whose commands read them."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from portal.api.importers.reading import Section

_USUAL: Final = ("http", "ssh")
"""OpenPAI's REST server adds one port of each to every role that does not declare it."""
_NO_VARIABLE: Final = re.compile(r"[^A-Za-z0-9_]")
_READ: Final = re.compile(
    r"PAI_PORT_LIST_((?:(?!PAI_PORT_LIST_)(?:\S| \+ )){1,100}?)_(http|ssh)(?![A-Za-z0-9_])"
)
"""Also where the role or the index is put together, as in ``PAI_PORT_LIST_w_${i}_http``, or with
plus signs; but not beyond the end of a variable, where another may follow."""


def declared_labels(role: Section) -> set[str]:
    """The ports that a role declares, be it none of them (0)."""
    resources = role.peek("resourcePerInstance")
    ports = resources.get("ports") if isinstance(resources, Mapping) else None
    return set(ports) if isinstance(ports, Mapping) else set()


def add_usual_ports(
    roles: Mapping[str, dict[str, Any]],
    sections: Mapping[str, Section],
    declared: Mapping[str, set[str]],
) -> None:
    """Declare the two ports for those roles of which a command of the job reads them.

    Args:
        roles: the translated roles by their old names.
        sections: where each stands in the document.
        declared: what ``declared_labels`` found of each before it was read.
    """
    commands = "\n".join(role.get("command", "") for role in roles.values())
    for name, label in _read_ports(commands, list(roles)):
        if label not in declared[name]:
            roles[name].setdefault("ports", {})[label] = 1
            place = sections[name].at("resourcePerInstance").child("ports").child(label)
            sections[name].report.warn(
                place,
                "is not declared, but commands read it: one port is added, as OpenPAI does.",
            )


def _read_ports(commands: str, names: Sequence[str]) -> list[tuple[str, str]]:
    """Roles with the labels that are read of them: of all where a role is not spelled out."""
    found = set[tuple[str, str]]()
    for begin, label in _READ.findall(commands):
        spelled = [name for name in names if begin.startswith(f"{_NO_VARIABLE.sub('_', name)}_")]
        # Of ``worker`` and ``worker_a`` the longer is meant: an index is a number.
        longest = max(map(len, spelled), default=0)
        meant = [name for name in spelled if len(name) == longest]
        found |= {(name, label) for name in meant or names}
    return [(name, label) for name in names for label in _USUAL if (name, label) in found]
