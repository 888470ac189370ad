"""A virtual cluster's cells beside the nodes that they are bound to, as the API shows them."""

from typing import Annotated, TypedDict

from portal.api.response_models import Body, From
from scheduling.selectors.vc_cells import VcCells


class VcLeafOut(TypedDict):
    """A device of a bound cell: used, lent, idle or bad; `job` only where you may see it."""

    address: str
    node: str
    device: int
    use: Annotated[str, From("use.value")]
    tenant: str
    job: Annotated[int | None, From("job_id")]


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
    nodes: Annotated[int, From("all_nodes")]
    cells: list[VcCellOut]


vc_cells_out = Body(VcCellsOut, VcCells)
