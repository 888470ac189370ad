"""The physical part of a HiveD configuration: cell types and cells."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from scheduling.compat.hived.messages import phrase
from scheduling.compat.reading import Section, refuse_unknown_keys
from scheduling.core.jobspec.errors import DocumentPlace, RefusalError
from scheduling.core.jobspec.scalars import read_line, wrong_type

MAX_LEVELS: Final = 16
MAX_CELLS: Final = 200_000
_MAX_CHILDREN: Final = 10_000


@dataclass(frozen=True, slots=True)
class HivedCellType:
    """One level of a chain."""

    child: str
    count: int
    is_node: bool


@dataclass(frozen=True, slots=True)
class CellTypes:
    """All cell types; a type without a child is a device.

    Attributes:
        by_name: the types that could be parsed.
        unread: names of types with a fault; faults that follow from it are not reported.
    """

    by_name: Mapping[str, HivedCellType]
    unread: frozenset[str] = frozenset()

    def below(self, name: str) -> list[str]:
        """Return the types inside ``name``, from top to bottom."""
        found: list[str] = []
        while name in self.by_name and len(found) <= MAX_LEVELS:
            name = self.by_name[name].child
            found.append(name)
        return found

    def is_unclear(self, name: str) -> bool:
        """Return whether a type, or a type inside it, could not be parsed."""
        return not self.unread.isdisjoint((name, *self.below(name)))

    def node_levels(self, name: str) -> int:
        """Return the number of node levels at ``name`` and below."""
        return sum(
            self.by_name[each].is_node
            for each in (name, *self.below(name))
            if each in self.by_name
        )

    def leaves(self, name: str) -> int:
        """Return the number of devices in one cell of this type, limited to a maximum."""
        total = 1
        for each in (name, *self.below(name)):
            if each in self.by_name:
                total = min(total * self.by_name[each].count, MAX_CELLS + 1)
        return total

    def to_json(self) -> dict[str, Any]:
        """Return the types in the form of a configuration."""
        return {
            name: {
                "childCellType": kind.child,
                "childCellNumber": kind.count,
                "isNodeLevel": kind.is_node,
            }
            for name, kind in self.by_name.items()
        }


def read_types(cluster: Section) -> CellTypes:
    """Parse ``cellTypes``; reject cycles and chains without a valid cell."""
    if cluster.peek("cellTypes") is None:
        cluster.at("cellTypes").refuse(
            None, phrase("import-missing"), phrase("import-give", key="cellTypes"), "missing-field"
        )
    found: dict[str, HivedCellType] = {}
    places: dict[str, DocumentPlace] = {}
    unread: set[str] = set()
    for name, value, place in cluster.section("cellTypes").entries():
        part = Section(value, place, cluster.report)
        part.rename("childGpuType", "childCellType")
        child = part.text("childCellType", required=True)
        count = part.integer("childCellNumber", 1, _MAX_CHILDREN, required=True)
        is_node = part.boolean("isNodeLevel")
        refuse_unknown_keys(part, ("childCellType", "childCellNumber", "isNodeLevel"))
        if "." in name or not name:
            place.refuse(name, phrase("hived-not-a-type-name"), phrase("hived-no-dots"))
        if child and count:
            found[name] = HivedCellType(child, count, bool(is_node))
            places[name] = place
        else:
            unread.add(name)
    types = CellTypes(found, frozenset(unread))
    for name, place in places.items():
        _check_chain(name, types, place)
    return types


def _check_chain(name: str, types: CellTypes, place: DocumentPlace) -> None:
    below = types.below(name)
    if name in below:
        place.child("childCellType").refuse(
            types.by_name[name].child,
            phrase("hived-cycle", name=repr(name)),
            phrase("hived-end-at-device"),
            "conflict",
        )
    elif len(below) > MAX_LEVELS:
        place.refuse(
            name,
            phrase("hived-too-many-levels", most=MAX_LEVELS),
            phrase("import-use-fewer"),
            "out-of-range",
        )
    elif types.node_levels(name) > 1:
        place.child("isNodeLevel").refuse(
            True, phrase("hived-two-node-levels"), phrase("hived-keep-node-level"), "conflict"
        )


def read_physical_cells(
    cluster: Section, types: CellTypes
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Parse ``physicalCells``.

    Returns:
        The cells with addresses as strings, and the place of each pinned cell by its ID.
    """
    if not cluster.peek("physicalCells"):
        cluster.at("physicalCells").refuse(
            None, phrase("hived-no-cell"), phrase("hived-give-cell"), "missing-field"
        )
    reader = _CellReader(types)
    cells = [reader.top(part) for part in cluster.sections("physicalCells")]
    return cells, reader.pinned


class _CellReader:
    """Parses cells, and records the values that must be unique among them."""

    def __init__(self, types: CellTypes) -> None:
        self.types = types
        self.pinned: dict[str, str] = {}
        self._nodes: dict[tuple[str, str], str] = {}
        self._leaves = 0

    def top(self, part: Section) -> dict[str, Any]:
        """Parse one top-level cell, which contains its type."""
        kind = part.text("cellType", required=True)
        if kind is not None:
            self._check_top(kind, part.at("cellType"))
        return {"cellType": kind, **self._cell(part, kind or "", 1)}

    def _check_top(self, kind: str, place: DocumentPlace) -> None:
        if self.types.is_unclear(kind):
            return
        if kind not in self.types.by_name:
            near = difflib.get_close_matches(kind, self.types.by_name, n=1)
            remedy = phrase("hived-did-you-mean", name=near[0]) if near else phrase("hived-define")
            place.refuse(kind, phrase("hived-undefined"), remedy, "conflict")
            return
        if self.types.node_levels(kind) == 0:
            place.refuse(
                kind, phrase("hived-no-node-level"), phrase("hived-set-node-level"), "conflict"
            )
        self._leaves += self.types.leaves(kind)
        if MAX_CELLS < self._leaves <= MAX_CELLS + self.types.leaves(kind):
            place.refuse(
                kind,
                phrase("hived-too-many-devices", most=MAX_CELLS),
                phrase("import-use-fewer"),
                "out-of-range",
            )

    def _cell(self, part: Section, kind: str, level: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        address = part.read("cellAddress", _address)
        if address is not None:
            found["cellAddress"] = address
        self._note_node(part, kind, address)
        part.rename("reservationId", "pinnedCellId")
        pin = part.text("pinnedCellId")
        if pin:
            found["pinnedCellId"] = pin
            self._note_pin(part, pin)
        children = part.sections("cellChildren")
        if children:
            found["cellChildren"] = self._children(part, children, kind, level)
        refuse_unknown_keys(part, ("cellAddress", "cellChildren", "pinnedCellId", "cellType"))
        return found

    def _children(
        self, part: Section, children: list[Section], kind: str, level: int
    ) -> list[dict[str, Any]]:
        if self.types.is_unclear(kind):
            return []
        place = part.at("cellChildren")
        cell_type = self.types.by_name.get(kind)
        if cell_type is None or level > MAX_LEVELS:
            place.refuse(
                kind, phrase("hived-below-device"), phrase("hived-remove-or-define"), "conflict"
            )
            return []
        if len(children) > cell_type.count:
            place.refuse(
                len(children),
                phrase("hived-too-many-children", most=cell_type.count, kind=repr(kind)),
                phrase("hived-list-at-most", most=cell_type.count),
                "conflict",
            )
        for child in children:
            _check_child(child, kind, cell_type.child)
        found = [self._cell(child, cell_type.child, level + 1) for child in children]
        seen: set[str] = set()
        for child, cell in zip(children, found, strict=True):
            address = cell.get("cellAddress")
            if address is not None and address in seen:
                child.at("cellAddress").refuse(
                    address,
                    phrase("hived-address-twice"),
                    phrase("hived-give-another"),
                    "duplicate",
                )
            seen.add(address or "")
        return found

    def _note_node(self, part: Section, kind: str, address: str | None) -> None:
        cell_type = self.types.by_name.get(kind)
        if cell_type is None or not cell_type.is_node or address is None:
            return
        # A node with devices of two types belongs to two chains, so the key contains the type.
        known = self._nodes.setdefault((kind, address), part.place.path)
        if known != part.place.path:
            part.at("cellAddress").refuse(
                address,
                phrase("hived-node-twice", place=known),
                phrase("hived-name-nodes"),
                "duplicate",
            )

    def _note_pin(self, part: Section, pin: str) -> None:
        if pin in self.pinned:
            part.at("pinnedCellId").refuse(
                pin,
                phrase("hived-pin-twice", place=self.pinned[pin]),
                phrase("hived-pin-id-once"),
                "duplicate",
            )
        self.pinned.setdefault(pin, part.place.path)


def _address(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if isinstance(value, float):
        raise wrong_type(value, "a text", phrase("hived-quote", value=value))
    address = read_line(value, 253)
    if "/" in address:
        raise RefusalError(phrase("hived-slash"), phrase("hived-write-part"))
    return address


def _check_child(child: Section, kind: str, expected: str) -> None:
    """Check that a child cell has the child type of its parent, or no type."""
    given = child.text("cellType")
    if given is not None and given != expected:
        child.at("cellType").refuse(
            given,
            phrase("hived-not-the-child", kind=repr(kind)),
            phrase("hived-write-child", kind=expected),
            "conflict",
        )
