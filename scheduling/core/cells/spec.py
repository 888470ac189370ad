"""The specification of a cluster: cell types, physical cells, shares of virtual clusters."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from scheduling.core.cells.errors import SpecError

MAX_FANOUT = 4096
MAX_DEPTH = 16
MAX_NAME = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CellType:
    """A cell type: ``count`` cells of type ``child``. A type without an entry is a device type.

    Attributes:
        child: name of the type one level below.
        count: number of children of a complete cell.
        node_level: whether a cell of this type is one machine.
    """

    child: str
    count: int
    node_level: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PhysicalCell:
    """A physical cell; without listed children it is complete.

    Attributes:
        type: cell type; empty in children, since the parent's type determines it.
        address: path segment of its address; empty for the default index.
        children: explicit children; if given, only these exist.
    """

    type: str = ""
    address: str = ""
    children: tuple["PhysicalCell", ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """A number ``count`` of cells of type ``level`` in ``chain`` that a virtual cluster owns."""

    chain: str
    level: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VcSpec:
    """The guaranteed share of a virtual cluster.

    Attributes:
        quotas: cells by chain and level.
        pinned: id of a pinned cell -> full address of the physical cell.
    """

    quotas: tuple[Quota, ...] = ()
    pinned: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """The input of the cell engine. It validates its values; the engine checks that they fit.

    Attributes:
        groups: group of each node by kind of group (``rack``, ``pool``), for chains without a cell
            of that kind. Groups are no cells: they limit placements, and nobody owns them.
    """

    cell_types: Mapping[str, CellType]
    physical: tuple[PhysicalCell, ...]
    virtual_clusters: Mapping[str, VcSpec]
    groups: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Reject values that are invalid in themselves."""
        for name, cell_type in self.cell_types.items():
            _check_type(name, cell_type)
        for name, vc in self.virtual_clusters.items():
            _check_vc(name, vc)

    def to_json(self) -> dict[str, Any]:
        """Return the canonical JSON form, sorted except where the order matters."""
        document: dict[str, Any] = {
            "cell_types": {
                name: {"child": t.child, "count": t.count, "node_level": t.node_level}
                for name, t in sorted(self.cell_types.items())
            },
            "physical": [_cell_to_json(cell) for cell in self.physical],
            "virtual_clusters": {
                name: {
                    "quotas": [
                        {"chain": q.chain, "level": q.level, "count": q.count} for q in vc.quotas
                    ],
                    "pinned": dict(sorted(vc.pinned.items())),
                }
                for name, vc in sorted(self.virtual_clusters.items())
            },
        }
        if self.groups:
            document["groups"] = {
                kind: dict(sorted(members.items()))
                for kind, members in sorted(self.groups.items())
            }
        return document

    def canonical(self) -> str:
        """Return the JSON form as a string; equal specifications have equal strings."""
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, document: object) -> Self:
        """Read a specification from JSON.

        Raises:
            SpecError: naming the field, the value and the remedy.
        """
        top = _mapping(document, "spec")
        types = {
            _name(name, "cell_types"): _type_from_json(name, body)
            for name, body in _mapping(top.get("cell_types", {}), "cell_types").items()
        }
        physical = tuple(
            _cell_from_json(body, f"physical[{i}]", 0)
            for i, body in enumerate(_sequence(top.get("physical", []), "physical"))
        )
        vcs = {
            _name(name, "virtual_clusters"): _vc_from_json(name, body)
            for name, body in _mapping(top.get("virtual_clusters", {}), "virtual_clusters").items()
        }
        groups = {
            _name(kind, "groups"): {
                _name(node, f"groups.{kind}"): text(group, f"groups.{kind}.{node}")
                for node, group in _mapping(members, f"groups.{kind}").items()
            }
            for kind, members in _mapping(top.get("groups", {}), "groups").items()
        }
        return cls(cell_types=types, physical=physical, virtual_clusters=vcs, groups=groups)


def _check_type(name: str, cell_type: CellType) -> None:
    where = f"cell_types.{name}"
    if not 1 <= cell_type.count <= MAX_FANOUT:
        raise SpecError(
            f"cell type {name!r}: count {cell_type.count} is outside 1..{MAX_FANOUT}",
            field=f"{where}.count",
            value=cell_type.count,
            remedy="give the number of child cells",
        )
    if not cell_type.child or cell_type.child == name:
        raise SpecError(
            f"cell type {name!r}: child {cell_type.child!r} is not another type",
            field=f"{where}.child",
            value=cell_type.child,
            remedy="name the type one level below",
        )


def _check_vc(name: str, vc: VcSpec) -> None:
    if not name or "/" in name:
        raise SpecError(
            f"virtual cluster name {name!r} is empty or has a slash",
            field="virtual_clusters",
            value=name,
            remedy="use a name without '/'",
        )
    for i, quota in enumerate(vc.quotas):
        if quota.count < 0:
            raise SpecError(
                f"virtual cluster {name!r}: count {quota.count} of {quota.level!r} is negative",
                field=f"virtual_clusters.{name}.quotas[{i}].count",
                value=quota.count,
                remedy="use 0 or more",
            )


def _cell_to_json(cell: PhysicalCell) -> dict[str, Any]:
    body: dict[str, Any] = {}
    if cell.type:
        body["type"] = cell.type
    if cell.address:
        body["address"] = cell.address
    if cell.children:
        body["children"] = [_cell_to_json(child) for child in cell.children]
    return body


def _type_from_json(name: object, document: object) -> CellType:
    where = f"cell_types.{name}"
    body = _mapping(document, where)
    return CellType(
        child=text(body.get("child"), f"{where}.child"),
        count=integer(body.get("count"), f"{where}.count"),
        node_level=flag(body.get("node_level", False), f"{where}.node_level"),
    )


def _cell_from_json(document: object, where: str, depth: int) -> PhysicalCell:
    if depth > MAX_DEPTH:
        raise SpecError(
            f"{where}: cells are nested deeper than {MAX_DEPTH} levels",
            field=where,
            remedy="use fewer levels",
        )
    body = _mapping(document, where)
    children = _sequence(body.get("children") or [], f"{where}.children")
    return PhysicalCell(
        type=text(body.get("type", ""), f"{where}.type", empty=True),
        address=text(body.get("address", ""), f"{where}.address", empty=True),
        children=tuple(
            _cell_from_json(child, f"{where}.children[{i}]", depth + 1)
            for i, child in enumerate(children)
        ),
    )


def _vc_from_json(name: object, document: object) -> VcSpec:
    where = f"virtual_clusters.{name}"
    body = _mapping(document, where)
    quotas = []
    for i, entry in enumerate(_sequence(body.get("quotas", []), f"{where}.quotas")):
        at = f"{where}.quotas[{i}]"
        quota = _mapping(entry, at)
        quotas.append(
            Quota(
                chain=text(quota.get("chain"), f"{at}.chain"),
                level=text(quota.get("level"), f"{at}.level"),
                count=integer(quota.get("count"), f"{at}.count"),
            )
        )
    pinned = {
        _name(key, f"{where}.pinned"): text(value, f"{where}.pinned.{key}")
        for key, value in _mapping(body.get("pinned", {}), f"{where}.pinned").items()
    }
    return VcSpec(quotas=tuple(quotas), pinned=pinned)


def _mapping(value: object, where: str) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise SpecError(f"{where} is not a mapping", field=where, value=value, remedy="use {}")
    return value


def _sequence(value: object, where: str) -> list[Any] | tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise SpecError(f"{where} is not a list", field=where, value=value, remedy="use []")
    return value


def _name(value: object, where: str) -> str:
    return text(value, where)


def text(value: object, where: str, *, empty: bool = False) -> str:
    """Read a string of bounded length, or raise a :class:`SpecError` that names ``where``."""
    if not isinstance(value, str) or len(value) > MAX_NAME or (not value and not empty):
        raise SpecError(
            f"{where} is not a name of 1 to {MAX_NAME} characters",
            field=where,
            value=value,
            remedy="give a string",
        )
    return value


def integer(value: object, where: str) -> int:
    """Read an integer (not a boolean or float), or raise a :class:`SpecError` with ``where``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise SpecError(
            f"{where} is not an integer", field=where, value=value, remedy="give an integer"
        )
    return value


def flag(value: object, where: str) -> bool:
    """Read a boolean, or raise a :class:`SpecError` that names ``where``."""
    if not isinstance(value, bool):
        raise SpecError(
            f"{where} is neither true nor false", field=where, value=value, remedy="give a boolean"
        )
    return value


mapping = _mapping
sequence = _sequence
