"""A virtual cluster's cells beside the nodes that they are bound to, as the API shows them."""

from typing import TypedDict

from scheduling.selectors.vc_cells import VcCell, VcCells, VcLeaf


class VcLeafOut(TypedDict):
    """A device of a bound cell: used, lent, idle or bad; `job` only where you may see it."""

    address: str
    node: str
    device: int
    use: str
    tenant: str
    job: int | None


class VcCellOut(TypedDict):
    """One cell of the share; `physical` is empty while it is not bound."""

    number: int
    address: str
    chain: str
    device_type: str
    level: str
    type: str
    devices: int
    pinned: str
    physical: str
    doomed: bool
    leaves: list[VcLeafOut]


class VcCellsOut(TypedDict):
    """Bound cells first, at most 128; `total` and `bound` count all of them."""

    total: int
    bound: int
    nodes: int
    cells: list[VcCellOut]


def vc_cells_out(found: VcCells) -> VcCellsOut:
    """The cells of a virtual cluster."""
    return {
        "total": found.total,
        "bound": found.bound,
        "nodes": found.all_nodes,
        "cells": [_cell_out(cell) for cell in found.cells],
    }


def _cell_out(cell: VcCell) -> VcCellOut:
    return {
        "number": cell.number,
        "address": cell.address,
        "chain": cell.chain,
        "device_type": cell.device_type,
        "level": cell.level,
        "type": cell.type,
        "devices": cell.devices,
        "pinned": cell.pinned,
        "physical": cell.physical,
        "doomed": cell.doomed,
        "leaves": [_leaf_out(leaf) for leaf in cell.leaves],
    }


def _leaf_out(leaf: VcLeaf) -> VcLeafOut:
    return {
        "address": leaf.address,
        "node": leaf.node,
        "device": leaf.device,
        "use": leaf.use.value,
        "tenant": leaf.tenant,
        "job": leaf.job_id,
    }
