"""Placement of a job on the cell tree of a node: rows from node to device."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from django.utils.translation import gettext

from portal.i18n import word
from portal.web.components.mapvalues import MapCell

WIDTH: Final = 358.0
LABELS: Final = 50.0
ROW: Final = 34
BOX: Final = 27
GAPS: Final = (4.0, 6.0, 11.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedCell:
    """One cell; ``look`` is ``on`` (used completely by the job), ``part`` (partly), or empty."""

    x: str
    y: str
    width: str
    middle: str
    text_y: str
    look: str
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedRow:
    """A level: its name and position."""

    text: str
    y: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The drawing of one node."""

    node: str
    url: str
    height: int
    rows: tuple[PlacedRow, ...]
    cells: tuple[PlacedCell, ...]
    ranks: tuple[PlacedCell, ...]
    summary: str
    table: tuple[tuple[int, str], ...]


def placement(*, node: str, tree: MapCell, ranks: Mapping[int, str], url: str = "") -> Placement:
    """Draw the cells of ``node`` that a job uses.

    Args:
        node: name of the node.
        tree: cells of the node.
        ranks: rank by device index, for the job's devices.
        url: the node's page.
    """
    levels = _levels(tree)
    spans = _spans(tree)
    drawing = _Drawing(node=node, job=frozenset(ranks), spans=spans)
    _walk(drawing, tree, 0)
    rank_cells: list[PlacedCell] = []
    for device, rank in ranks.items():
        if device in spans:
            rank_cells.append(_rank_cell(spans[device], rank, len(levels)))
    rows = [*levels, "rank"]
    return Placement(
        node=node,
        url=url,
        height=ROW * len(levels) + 24,
        rows=tuple(
            PlacedRow(text=word(text), y=str(ROW * index + 18 - (8 if text == "rank" else 0)))
            for index, text in enumerate(rows)
        ),
        cells=tuple(drawing.cells),
        ranks=tuple(rank_cells),
        summary=gettext("%(ranks)s of %(leaves)s devices of %(node)s hold ranks %(values)s.")
        % {
            "ranks": len(ranks),
            "leaves": len(tree.leaves),
            "node": node,
            "values": ", ".join(ranks.values()),
        },
        table=tuple((device, rank) for device, rank in ranks.items()),
    )


@dataclass(slots=True)
class _Drawing:
    node: str
    job: frozenset[int]
    spans: Mapping[int, tuple[float, float]]
    cells: list[PlacedCell] = field(default_factory=list)


def _levels(tree: MapCell) -> list[str]:
    names = [tree.level]
    cell = tree
    while cell.children:
        cell = cell.children[0]
        names.append(cell.level)
    return names


def _spans(tree: MapCell) -> dict[int, tuple[float, float]]:
    """Return left and right edge of each device, with wider gaps where larger cells meet."""
    weights: list[tuple[int, float]] = []
    _collect(tree, weights)
    gaps = sum(gap for _, gap in weights[1:])
    each = (WIDTH - LABELS - 1 - gaps) / max(len(weights), 1)
    spans: dict[int, tuple[float, float]] = {}
    x = LABELS + 0.5
    for position, (device, gap) in enumerate(weights):
        x += gap if position else 0
        spans[device] = (x, x + each)
        x += each
    return spans


def _collect(cell: MapCell, into: list[tuple[int, float]], gap: float = 0.0) -> None:
    if not cell.children:
        if cell.device is not None:
            into.append((cell.device, gap))
        return
    between = GAPS[min(cell.height - 1, len(GAPS) - 1)]
    for position, child in enumerate(cell.children):
        _collect(child, into, between if position else gap)


def _walk(drawing: _Drawing, cell: MapCell, depth: int) -> None:
    leaves = cell.leaves
    if not leaves:
        return
    held = sum(leaf in drawing.job for leaf in leaves)
    whole = held == len(leaves)
    look = "on" if whole and (depth == 0 or not cell.children) else ("part" if held else "")
    text = str(cell.device) if not cell.children else ""
    if depth == 0:
        text = gettext("%(node)s, whole") % {"node": drawing.node} if whole else drawing.node
    x, right = drawing.spans[leaves[0]][0], drawing.spans[leaves[-1]][1]
    drawing.cells.append(
        PlacedCell(
            x=f"{x:.1f}",
            y=f"{ROW * depth + 0.5:.1f}",
            width=f"{right - x:.1f}",
            middle=f"{(x + right) / 2:.1f}",
            text_y=str(ROW * depth + 18),
            look=look,
            text=text,
        )
    )
    for child in cell.children:
        _walk(drawing, child, depth + 1)


def _rank_cell(span: tuple[float, float], rank: str, depth: int) -> PlacedCell:
    middle = (span[0] + span[1]) / 2
    y = str(ROW * depth + 10)
    return PlacedCell(
        x=f"{span[0]:.1f}", y=y, width="0", middle=f"{middle:.1f}", text_y=y, look="", text=rank
    )
