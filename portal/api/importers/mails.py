"""What people want to be told of by mail, from the words of other systems to ours."""

import re
from collections.abc import Sequence
from typing import Any, Final

from portal.api.importers.reading import Section

_USER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_OPENPAI: Final = (
    ("running", "running"),
    ("succeeded", "succeeded"),
    ("stopped", "stopped"),
    ("failed", "failed"),
    ("retried", "requeued"),
)
_ENDS: Final = ("succeeded", "failed", "stopped")
_SLURM: Final[dict[str, tuple[str, ...]]] = {
    "NONE": (),
    "BEGIN": ("running",),
    "END": _ENDS,
    "FAIL": ("failed",),
    "REQUEUE": ("requeued",),
    "TIME_LIMIT": ("failed",),
    "ALL": ("running", *_ENDS, "requeued"),
}
_WITHOUT: Final = {
    "INVALID_DEPEND": "No mail comes when a condition cannot come true; the job says so.",
    "STAGE_OUT": "No data are staged.",
    "TIME_LIMIT_90": "No mail comes before the time limit.",
    "TIME_LIMIT_80": "No mail comes before the time limit.",
    "TIME_LIMIT_50": "No mail comes before the time limit.",
    "ARRAY_TASKS": "Each task is a job, of which mails are sent in any case.",
}


def openpai_notify(extras: Section) -> dict[str, Any]:
    """``notify`` of a document of OpenPAI's; empty where it says nothing."""
    if extras.peek("jobStatusChangeNotification") is None:
        return {}
    section = extras.section("jobStatusChangeNotification")
    chosen = [ours for theirs, ours in _OPENPAI if section.boolean(theirs)]
    section.finish()
    return {"notify": {"on": chosen}}


def slurm_notify(given: Section) -> dict[str, Any]:
    """``notify`` of a batch script; empty where it says nothing that can be done."""
    kinds, people = given.text("--mail-type"), given.text("--mail-user")
    readers = _readers(people, given) if people else []
    if kinds is None:
        if people:
            words = "Without --mail-type Slurm sends no mail; you get those that you have chosen."
            given.report.lacks(given.at("--mail-user"), people, words, needed=False)
        return {}
    chosen = _kinds([name.strip().upper() for name in kinds.split(",")], given)
    if chosen is None:
        return {}
    return {"notify": {"on": list(chosen), **({"to": readers} if readers else {})}}


def _kinds(names: Sequence[str], given: Section) -> list[str] | None:
    """Our words for Slurm's; None where none of them has a counterpart."""
    place = given.at("--mail-type")
    for name in names:
        if name not in _SLURM:
            words = _WITHOUT.get(name, "It is not known here.")
            given.report.lacks(place, name, words, needed=False)
    if "TIME_LIMIT" in names:
        given.report.warn(place, "has TIME_LIMIT, which is read as: when the job fails.")
    known = [name for name in names if name in _SLURM]
    chosen = dict.fromkeys(word for name in known for word in _SLURM[name])
    return list(chosen) if known else None


def _readers(people: str, given: Section) -> list[str]:
    """User names; an address is nobody's name here."""
    found = []
    for name in (part.strip() for part in people.split(",")):
        if _USER.fullmatch(name):
            found.append(name)
        elif name:
            words = "Mails go to the addresses that people have here; name other users."
            given.report.lacks(given.at("--mail-user"), name, words, needed=False)
    if found:
        given.report.warn(
            given.at("--mail-user"), "names members of the tenant who get mails beside you."
        )
    return found
