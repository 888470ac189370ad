"""Response shapes of a reconfiguration."""

from typing import Annotated, TypedDict

from portal.api.response_models import Body, From
from scheduling.clusters.services.reconfiguration import Reconfigured


class AffectedJobOut(TypedDict):
    """A job that a change affects; name and user are empty for jobs that you may not see."""

    id: Annotated[int, From("job_id")]
    name: str
    user: str
    virtual_cluster: str
    tenant: str
    devices: int


class PromiseOut(TypedDict):
    """Guaranteed cells of one level before and after."""

    virtual_cluster: Annotated[str, From("vc")]
    chain: str
    level: str
    before: int
    after: int


class PinChangeOut(TypedDict):
    """The address of a pinned cell before and after; empty for none."""

    virtual_cluster: Annotated[str, From("vc")]
    name: str
    before: str
    after: str


class ReconfigurationOut(TypedDict):
    """The result of a reconfiguration or dry run; no job is preempted.

    `version` is that of the topology: as read for a dry run, else the new one. Jobs in
    `become_opportunistic` run on, and borrow their devices from the next round on.
    """

    dry_run: bool
    version: int
    fits: Annotated[bool, From("effect.change.fits")]
    witnesses: Annotated[list[str], From("effect.change.witnesses")]
    become_opportunistic: Annotated[list[AffectedJobOut], From("effect.loses")]
    guaranteed_again: Annotated[list[AffectedJobOut], From("effect.regains")]
    no_longer_fit: Annotated[list[AffectedJobOut], From("effect.no_longer_fit")]
    cells: Annotated[list[PromiseOut], From("effect.change.promises")]
    pinned: Annotated[list[PinChangeOut], From("effect.change.pins")]
    nodes_added: Annotated[list[str], From("effect.change.nodes_added")]
    nodes_removed: Annotated[list[str], From("effect.change.nodes_removed")]


reconfiguration_out = Body(ReconfigurationOut, Reconfigured)
