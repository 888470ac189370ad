"""Variables of the environment in dstack's and SkyPilot's documents."""

import re
from typing import Any, Final

from portal.api.importers.reading import Report, Section
from portal.api.importers.templates import plain_text
from scheduling.core.jobspec.errors import Place, RefusalError

_ASSIGNED: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,127})=(.*)", re.DOTALL)
_REFERENCE: Final = re.compile(r"\$\{\{.*?\}\}")
_FROM_CALLER: Final = "Its value is not in the document; write it there."


def read_variables(section: Section, key: str, *, hidden: bool = False) -> dict[str, str]:
    """Variables of an object or a list at ``key``; those without a value are reported."""
    value = section.peek(key)
    place = section.at(key)
    if isinstance(value, list):
        pairs = _listed(section, key)
    else:
        pairs = list(section.section(key).entries())
    found: dict[str, str] = {}
    for name, given, there in pairs:
        if given is None:
            section.report.lacks(there, name, _FROM_CALLER, needed=True)
            continue
        try:
            text = plain_text(given)
        except RefusalError as refusal:
            there.note("" if hidden else given, refusal)
            continue
        if not hidden:
            report_references(text, there, section.report)
        if name in found:
            place.refuse(name, "is set twice.", "Keep one.", "duplicate")
        found[name] = text
    return found


def _listed(section: Section, key: str) -> list[tuple[str, Any, Place]]:
    pairs: list[tuple[str, Any, Place]] = []
    for item, place in section.items(key):
        if not isinstance(item, str):
            place.refuse(item, "is no variable.", "Write NAME=VALUE.", "wrong-type")
        elif match := _ASSIGNED.fullmatch(item):
            pairs.append((match[1], match[2], place))
        else:
            pairs.append((item, None, place))
    return pairs


def report_references(text: str, place: Place, report: Report) -> None:
    """Report references that another server would have filled in."""
    for found in dict.fromkeys(_REFERENCE.findall(text)):
        words = "It is filled in by the other system's server, and not here."
        report.lacks(place, found, words, needed=True)
