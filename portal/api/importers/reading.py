"""Reading somebody else's document: what nobody takes out of an object is reported."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from portal.api.importers.result import ImportRefusedError, Unsupported
from scheduling.core.jobspec.errors import (
    HIDDEN,
    Place,
    RefusalError,
    may_be_secret,
    show,
)
from scheduling.core.jobspec.scalars import read_bool, read_integer, read_string, wrong_type
from scheduling.core.jobspec.table import refuse_unknown
from tessera.messages import placed

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Report:
    """What is gathered while a document is read."""

    errors: list[Any] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    unsupported: list[Unsupported] = field(default_factory=list)

    def warn(self, place: Place, message: str) -> None:
        """Note something that means something slightly different here."""
        self.warnings.append(placed(place.path, message) if place.path else message)

    def lacks(self, place: Place, value: object, message: str, *, needed: bool) -> None:
        """Note something that has no counterpart."""
        key = place.path.rpartition(".")[2]
        hidden = place.hidden or may_be_secret(key)
        self.unsupported.append(
            Unsupported(
                field=place.path,
                value=HIDDEN if hidden else show(value),
                message=message,
                needed=needed,
            )
        )

    def raise_errors(self) -> None:
        """Stop here if anything was wrong.

        Raises:
            ImportRefusedError: with all of it.
        """
        if self.errors:
            raise ImportRefusedError(self.errors)


class Section:
    """One object of the document, from which keys are taken one by one."""

    def __init__(self, value: object, place: Place, report: Report) -> None:
        self.place = place
        self.report = report
        self._left: dict[Any, Any] = {}
        self._broken = False
        if isinstance(value, Mapping):
            self._left = dict(value)
        elif value is not None:
            self._broken = True
            place.note(value, wrong_type(value, "an object", "Write keys and values."))

    def at(self, key: str) -> Place:
        """The place of a key."""
        return self.place.child(key)

    def take(self, key: str) -> Any:
        """What stands at ``key``, or None."""
        return self._left.pop(key, None)

    def has(self, key: str) -> bool:
        """Whether ``key`` stands there, be it null."""
        return key in self._left

    def peek(self, key: str) -> Any:
        """What stands at ``key``, without taking it."""
        return self._left.get(key)

    def rename(self, old: str, new: str) -> None:
        """Accept what ``new`` was called in older versions."""
        if old not in self._left:
            return
        value = self._left.pop(old)
        if self._left.get(new) not in (None, value):
            self.at(old).refuse(value, f"contradicts {new}.", f"Keep {new} only.", "conflict")
        self._left[new] = value
        self.report.warn(self.at(old), f"is called {new} today and was read as that.")

    def read(self, key: str, read: Callable[[object], T], *, required: bool = False) -> T | None:
        """The value at ``key``, checked; None if it is absent, null or wrong."""
        value = self.take(key)
        place = self.at(key)
        if value is None:
            if required and not self._broken:
                place.refuse(value, "is missing.", f"Give {key}.", "missing-field")
            return None
        try:
            return read(value)
        except RefusalError as refusal:
            place.note(value, refusal)
            return None

    def text(self, key: str, *, required: bool = False) -> str | None:
        """A text."""
        return self.read(key, lambda value: read_string(value, "Write a text."), required=required)

    def integer(
        self, key: str, lowest: int, highest: int, *, required: bool = False
    ) -> int | None:
        """A whole number."""
        return self.read(
            key, lambda value: read_integer(value, lowest, highest), required=required
        )

    def boolean(self, key: str) -> bool | None:
        """True or false."""
        return self.read(key, read_bool)

    def section(self, key: str) -> "Section":
        """The object at ``key``; an empty one if it is absent."""
        return Section(self.take(key), self.at(key), self.report)

    def items(self, key: str) -> list[tuple[Any, Place]]:
        """The elements of the list at ``key``, each with its place."""
        value, place = self.take(key), self.at(key)
        if value is None:
            return []
        if not isinstance(value, list | tuple):
            place.note(value, wrong_type(value, "a list", "Write a list."))
            return []
        return [(item, place.item(index)) for index, item in enumerate(value)]

    def sections(self, key: str) -> list["Section"]:
        """The objects of the list at ``key``."""
        return [Section(item, place, self.report) for item, place in self.items(key)]

    def entries(self) -> list[tuple[str, Any, Place]]:
        """All that is left, for objects whose keys are names; nothing is left then."""
        left, self._left = self._left, {}
        found = []
        for key, value in left.items():
            if isinstance(key, str):
                found.append((key, value, self.at(key)))
            else:
                self.place.child(key).refuse(
                    key, "is a key that is no text.", "Put the key in quotes.", "wrong-type"
                )
        return found

    def lacks(self, key: str, message: str, *, needed: bool) -> None:
        """Report ``key``, if it is given, as something without a counterpart."""
        value = self.take(key)
        if value not in (None, False, [], {}):
            self.report.lacks(self.at(key), value, message, needed=needed)

    def rest(self) -> dict[Any, Any]:
        """What nobody has taken; nothing is left then."""
        left, self._left = self._left, {}
        return left

    def finish(self) -> None:
        """Report every key that nobody has taken."""
        for key, value, place in self.entries():
            self.report.lacks(place, value, f"{key} is not known here.", needed=True)


def refuse_rest(section: Section, names: Sequence[str]) -> None:
    """Refuse every key that nobody has taken, with the name that was meant."""
    refuse_unknown(section.rest(), names, section.place)
