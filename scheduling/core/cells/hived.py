"""Conversion of a HiveD configuration into a cluster specification.

Format: ``physicalCluster{cellTypes, physicalCells, skuTypes}`` and
``virtualClusters{name: {virtualCells[{cellType, cellNumber}], pinnedCells[{pinnedCellId}]}}``.
Of a dotted virtual ``cellType`` only the first name (the chain) and the last (the level) matter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scheduling.core.cells.cell_tree import child_segment
from scheduling.core.cells.errors import SpecError
from scheduling.core.cells.spec import (
    MAX_DEPTH,
    CellType,
    ClusterSpec,
    PhysicalCell,
    Quota,
    VcSpec,
    flag,
    integer,
    mapping,
    sequence,
    text,
)


def spec_from_hived(config: object) -> ClusterSpec:
    """Convert a HiveD configuration; pinned ids of physical cells become addresses.

    Raises:
        SpecError: naming the field, the value and the remedy.
    """
    top = mapping(config, "config")
    cluster = mapping(top.get("physicalCluster") or {}, "physicalCluster")
    types = _cell_types(mapping(cluster.get("cellTypes") or {}, "physicalCluster.cellTypes"))
    reader = _CellReader(types)
    physical = tuple(
        reader.top(body, index)
        for index, body in enumerate(
            sequence(cluster.get("physicalCells") or [], "physicalCluster.physicalCells")
        )
    )
    vcs = mapping(top.get("virtualClusters") or {}, "virtualClusters")
    return ClusterSpec(
        cell_types=types,
        physical=physical,
        virtual_clusters={
            text(name, "virtualClusters"): _vc(name, body, reader.pinned)
            for name, body in vcs.items()
        },
    )


def _cell_types(body: Mapping[Any, Any]) -> dict[str, CellType]:
    types = {}
    for name, entry in body.items():
        where = f"physicalCluster.cellTypes.{name}"
        fields = mapping(entry, where)
        types[text(name, "physicalCluster.cellTypes")] = CellType(
            child=text(fields.get("childCellType"), f"{where}.childCellType"),
            count=integer(fields.get("childCellNumber"), f"{where}.childCellNumber"),
            node_level=flag(fields.get("isNodeLevel") or False, f"{where}.isNodeLevel"),
        )
    return types


@dataclass(frozen=True, slots=True)
class _Place:
    """The position of a cell in the tree.

    Attributes:
        where: path in the document, for errors.
        type: its cell type.
        index: its default address segment.
        prefix: address of its parent with a slash, or empty.
        depth: distance from the top.
    """

    where: str
    type: str
    index: int
    prefix: str
    depth: int


class _CellReader:
    """Reads physical trees and collects the addresses of pinned cells."""

    def __init__(self, types: Mapping[str, CellType]) -> None:
        self._types = types
        self.pinned: dict[str, str] = {}

    def top(self, document: object, index: int) -> PhysicalCell:
        """Build a top cell with all cells below it."""
        where = f"physicalCluster.physicalCells[{index}]"
        body = mapping(document, where)
        name = text(body.get("cellType"), f"{where}.cellType")
        return self._cell(body, _Place(where, name, index, "", 0))

    def _cell(self, body: Mapping[Any, Any], place: _Place) -> PhysicalCell:
        if place.depth > MAX_DEPTH:
            raise SpecError(
                f"{place.where}: nested too deeply", field=place.where, remedy="use fewer levels"
            )
        segment = _address(body.get("cellAddress"), f"{place.where}.cellAddress")
        address = place.prefix + (segment or str(place.index))
        self._pin(body.get("pinnedCellId"), address, f"{place.where}.pinnedCellId")
        at = f"{place.where}.cellChildren"
        return PhysicalCell(
            type="" if place.prefix else place.type,
            address=segment,
            children=self._children(sequence(body.get("cellChildren") or [], at), place, address),
        )

    def _children(
        self, children: Sequence[Any], place: _Place, address: str
    ) -> tuple[PhysicalCell, ...]:
        if not children:
            return ()
        at = f"{place.where}.cellChildren"
        cell_type = self._types.get(place.type)
        if cell_type is None:
            raise SpecError(
                f"{place.where}: a leaf of type {place.type!r} has children",
                field=at,
                value=place.type,
                remedy="define the type in cellTypes, or remove the children",
            )
        return tuple(
            self._cell(
                mapping(child or {}, f"{at}[{i}]"),
                _Place(
                    f"{at}[{i}]",
                    cell_type.child,
                    child_segment(cell_type, place.index, i),
                    f"{address}/",
                    place.depth + 1,
                ),
            )
            for i, child in enumerate(children)
        )

    def _pin(self, value: object, address: str, where: str) -> None:
        if not value:
            return
        pin = text(value, where)
        if pin in self.pinned:
            raise SpecError(
                f"pinned cell {pin!r} is on two physical cells",
                field=where,
                value=pin,
                remedy="use each id once",
            )
        self.pinned[pin] = address


def _address(value: object, where: str) -> str:
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return text(value, where, empty=True)


def _vc(name: object, document: object, pinned: Mapping[str, str]) -> VcSpec:
    where = f"virtualClusters.{name}"
    body = mapping(document or {}, where)
    quotas = []
    for i, entry in enumerate(sequence(body.get("virtualCells") or [], f"{where}.virtualCells")):
        at = f"{where}.virtualCells[{i}]"
        fields = mapping(entry, at)
        path = text(fields.get("cellType"), f"{at}.cellType").split(".")
        quotas.append(
            Quota(
                chain=path[0],
                level=path[-1],
                count=integer(fields.get("cellNumber"), f"{at}.cellNumber"),
            )
        )
    ids: dict[str, str] = {}
    for i, entry in enumerate(sequence(body.get("pinnedCells") or [], f"{where}.pinnedCells")):
        at = f"{where}.pinnedCells[{i}].pinnedCellId"
        pin = text(mapping(entry, at).get("pinnedCellId"), at)
        if pin not in pinned:
            raise SpecError(
                f"{where}: no physical cell has the pinned id {pin!r}",
                field=at,
                value=pin,
                remedy="put pinnedCellId on a physical cell",
            )
        ids[pin] = pinned[pin]
    return VcSpec(quotas=tuple(quotas), pinned=ids)
