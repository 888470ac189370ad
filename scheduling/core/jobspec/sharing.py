"""The field ``sharing``: guests that a job allows on its devices, or its wish to be a guest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from scheduling.core.jobspec.errors import DocumentPlace, RefusalError
from scheduling.core.jobspec.scalars import MIB, TIB, read_bool, read_integer, read_memory
from scheduling.core.jobspec.table import AMOUNT, Field, choice, number_schema, read_object
from scheduling.core.messages import sentence
from scheduling.core.sharing.hosts import Consent

DEFAULT_SLOWDOWN: Final = 5
"""Percent of its own pace that a holder may lose, unless its job sets another limit."""
OF_HOLDERS: Final = ("guests", "slowdown_percent")
OF_GUESTS: Final = ("allowed", "memory", "wants")


def slowdown_of(sharing: Mapping[str, Any] | None) -> float:
    """Return the share of its speed alone that a job may lose to guests, by its stored field."""
    return float((sharing or {}).get("slowdown_percent", DEFAULT_SLOWDOWN)) / 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """Guests that a guaranteed job allows, or conditions that an opportunistic guest accepts.

    Attributes:
        guests: guests that it allows; None for the default of its virtual cluster.
        slowdown_percent: percent of its own pace that it may lose by guests; None for 5.
        allowed: whether it may run as a guest on a device in use.
        memory: minimum bytes of device memory with which it can work; 0 unless allowed.
        wants: bytes of device memory that it would use; 0 unless allowed.
    """

    guests: Consent | None = None
    slowdown_percent: int | None = None
    allowed: bool = False
    memory: int = 0
    wants: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the canonical document."""
        document: dict[str, Any] = {}
        if self.guests is not None:
            document["guests"] = self.guests.value
        if self.slowdown_percent is not None:
            document["slowdown_percent"] = self.slowdown_percent
        if self.allowed:
            document |= {"allowed": True, "memory": self.memory, "wants": self.wants}
        return document

    def fields_against(self, *, guaranteed: bool) -> tuple[str, ...]:
        """Return the given fields that belong to the other class of jobs."""
        if not guaranteed:
            return tuple(name for name in OF_HOLDERS if getattr(self, name) is not None)
        if not self.allowed:
            return ()
        return OF_GUESTS if self.wants != self.memory else OF_GUESTS[:-1]


def read_sharing(value: object, place: DocumentPlace) -> Sharing | None:
    """Read ``sharing``; None if it is not valid; its errors are collected."""
    faults = len(place.errors)
    given = read_object(value, SHARING_FIELDS, place)
    if len(place.errors) != faults:
        return None
    if not given.get("allowed"):
        for name in {"memory", "wants"} & given.keys():
            place.child(name).refuse(
                given[name], sentence("only-for-guests"), sentence("allow-or-omit"), "conflict"
            )
    elif "memory" not in given:
        place.child("memory").refuse(
            None, sentence("missing"), sentence("give-guest-memory"), "missing-field"
        )
    elif given.setdefault("wants", given["memory"]) < given["memory"]:
        place.child("wants").refuse(
            given["wants"],
            sentence("wants-below-memory"),
            sentence("raise-wants"),
            "out-of-range",
        )
    return Sharing(**given) if len(place.errors) == faults else None


def check_guest(given: Mapping[str, Any], place: DocumentPlace) -> None:
    """Check ``sharing`` against the class of the job and the size of its gang.

    A priority class may make a job opportunistic, so its class is known only at the submit.
    """
    sharing: Sharing | None = given.get("sharing")
    if sharing is None:
        return
    there = place.child("sharing")
    if given.get("class") == "opportunistic":
        refuse_fields(sharing, sharing.fields_against(guaranteed=False), there)
    elif not isinstance(given.get("priority"), str):
        refuse_fields(sharing, sharing.fields_against(guaranteed=True), there)
    roles: Sequence[Any] = list(given.get("roles", {}).values())
    if roles and not any(role is None or role.devices for role in roles):
        return  # refused, since it has no devices
    size = sum(role.instances * role.devices for role in roles if role)
    is_split = not given.get("gang", True) and all(role.devices == 1 for role in roles if role)
    if sharing.allowed and all(roles) and size != 1 and not is_split:
        there.child("allowed").refuse(
            True, sentence("guest-needs-one-device"), sentence("one-device-or-omit"), "conflict"
        )


def refuse_fields(sharing: Sharing, names: Sequence[str], place: DocumentPlace) -> None:
    """Refuse the fields of ``sharing`` that belong to the other class of jobs."""
    for name in names:
        message, remedy = conflict_of(name)
        value = getattr(sharing, name)
        place.child(name).refuse(
            value.value if isinstance(value, Consent) else value, message, remedy, "conflict"
        )


def conflict_of(name: str) -> tuple[str, str]:
    """Return the message and the remedy of a field of the other class of jobs."""
    if name in OF_HOLDERS:
        return sentence("sharing-of-guaranteed"), sentence("omit", name=name)
    return sentence("sharing-of-opportunistic"), sentence("omit-or-opportunistic", name=name)


def _slowdown(value: object, _place: DocumentPlace) -> int:
    return read_integer(value, 1, 20, sentence("write-slowdown"))


def _memory(value: object, _place: DocumentPlace) -> int:
    size = read_memory(value)
    if not 16 * MIB <= size <= TIB:
        raise RefusalError(
            sentence("out-of-range", lowest="16MiB", highest="1TiB"),
            sentence("write-memory"),
            "out-of-range",
        )
    return size


SHARING_FIELDS: Final = (
    Field(
        name="guests",
        type="none, same-tenant or any",
        default="as in the virtual cluster",
        help="Opportunistic jobs that may run on the devices of this guaranteed job while it "
        "does not use them: none, those of its tenant, or those of any tenant.",
        read=lambda value, _place: Consent(choice(value, [kind.value for kind in Consent])),
        schema={"enum": [kind.value for kind in Consent]},
    ),
    Field(
        name="slowdown_percent",
        type="number",
        default="5",
        help="Percent of its own pace that guests may cost this guaranteed job, 1 to 20.",
        read=_slowdown,
        schema=number_schema(1, 20),
    ),
    Field(
        name="allowed",
        type="true or false",
        default="false",
        help="Whether this opportunistic job may run as a guest on a device in use. It needs "
        "memory, one instance and one device.",
        read=lambda value, _place: read_bool(value),
        schema={"type": "boolean"},
    ),
    Field(
        name="memory",
        type="bytes, or a string such as 6GiB",
        default="none",
        help="Minimum device memory with which the guest can work.",
        read=_memory,
        schema=AMOUNT,
    ),
    Field(
        name="wants",
        type="bytes, or a string such as 12GiB",
        default="memory",
        help="Device memory that the guest would use if it is free.",
        read=_memory,
        schema=AMOUNT,
    ),
)
