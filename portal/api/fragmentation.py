"""Forecast of stranded devices, by gang size and by level."""

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, TypedDict

from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.bodies import read_body
from portal.api.schema import Op
from portal.api.views import ApiViewSet
from scheduling.estimates.queries import (
    ChainFragmentationView,
    FragmentationView,
    MovesView,
    fragmentation_view,
    moves_view,
)
from scheduling.estimates.services.moves import carry_out_moves
from tenants.clock import database_now
from tenants.roles import Permission


class SizeFragmentationOut(TypedDict):
    """A gang size in devices, and stranded devices `[p10, p50, p90]` at each time."""

    devices: int
    stranded: list[list[float]]


class LevelFragmentationOut(TypedDict):
    """A level by its cell type, devices of its cells, and stranded devices at each time."""

    level: str
    devices: int
    stranded: list[list[float]]


class ChainFragmentationOut(TypedDict):
    """A chain: its devices, its idle devices at each time, and the stranded ones of them."""

    chain: str
    device_type: str
    devices: int
    idle: list[list[float]]
    gang_sizes: list[SizeFragmentationOut]
    levels: list[LevelFragmentationOut]


class FragmentationOut(TypedDict):
    """The newest forecast; `offsets_s` are seconds after `made_at`, which is null before it."""

    made_at: datetime | None
    offsets_s: list[float]
    futures: int
    chains: list[ChainFragmentationOut]


class MoveOut(TypedDict):
    """A job that releases its devices; `after` is empty if it then waits in the queue."""

    job_id: int
    devices: int
    lost_s: float
    restart_s: float
    before: list[str]
    after: list[str]


class MovesOut(TypedDict):
    """Moves with which the waiting job `job_id` starts earlier; gain and cost in device-seconds.

    `sure` is the share of the simulated futures in which the gain exceeds the cost.
    """

    job_id: int
    round_number: int
    devices: int
    gain: float
    cost: float
    sure: float
    futures: int
    after: list[str]
    moves: list[MoveOut]


@dataclass(frozen=True, slots=True, kw_only=True)
class CarryOutIn:
    """The forecast whose moves are carried out."""

    round_number: int


class FragmentationViewSet(ApiViewSet):
    """Forecast of stranded devices, and moves against them."""

    collection = "fragmentation"
    needs = Permission.VIEW_CLUSTER
    operations: ClassVar = {
        "list": Op(answer=FragmentationOut),
        "moves": Op(answer=list[MovesOut]),
        "carry_out": Op(body=CarryOutIn, status=204),
    }

    def list(self, request: Request) -> Response:
        """Get the idle devices that no gang of a size can use, now and over the next hours.

        The forecast simulates the live jobs, and submissions like those of the last 24 h.
        """
        return Response(fragmentation_out(fragmentation_view(self.viewer)))

    @action(detail=False)
    def moves(self, request: Request) -> Response:
        """List moves of jobs that free devices for larger ones; for cluster admins."""
        return Response([_moves_out(one) for one in moves_view(self.viewer)])

    @action(detail=True, methods=["post"], url_path="carry-out")
    def carry_out(self, request: Request, pk: int) -> Response:
        """Carry out the moves for a waiting job; each moved job gets its grace period."""
        wanted = read_body(CarryOutIn, request.data)
        carry_out_moves(
            viewer=self.viewer, job_id=pk, round_number=wanted.round_number, now=database_now()
        )
        return Response(status=204)


def fragmentation_out(found: FragmentationView) -> FragmentationOut:
    """Return the response body."""
    return FragmentationOut(
        made_at=found.made_at,
        offsets_s=list(found.offsets),
        futures=found.futures,
        chains=[_chain_out(chain) for chain in found.chains],
    )


def _moves_out(found: MovesView) -> MovesOut:
    return MovesOut(
        job_id=found.job_id,
        round_number=found.round_number,
        devices=found.devices,
        gain=found.gain,
        cost=found.cost,
        sure=found.sure,
        futures=found.futures,
        after=list(found.after),
        moves=[
            MoveOut(
                job_id=move.job_id,
                devices=move.devices,
                lost_s=move.lost,
                restart_s=move.restart,
                before=list(move.before),
                after=list(move.after),
            )
            for move in found.moves
        ],
    )


def _chain_out(chain: ChainFragmentationView) -> ChainFragmentationOut:
    return ChainFragmentationOut(
        chain=chain.chain,
        device_type=chain.device_type,
        devices=chain.devices,
        idle=[list(band) for band in chain.idle],
        gang_sizes=[
            SizeFragmentationOut(devices=size, stranded=[list(band) for band in bands])
            for size, bands in chain.by_size
        ],
        levels=[
            LevelFragmentationOut(
                level=level, devices=devices, stranded=[list(band) for band in bands]
            )
            for level, devices, bands in chain.by_level
        ],
    )
