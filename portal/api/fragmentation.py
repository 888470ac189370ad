"""Forecast of stranded devices, by gang size and by level."""

from datetime import datetime
from typing import ClassVar, TypedDict

from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.schema import Op
from portal.api.views import ApiViewSet
from scheduling.estimates.queries import (
    ChainFragmentationView,
    FragmentationView,
    fragmentation_view,
)
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


class FragmentationViewSet(ApiViewSet):
    """Forecast of stranded devices."""

    collection = "fragmentation"
    needs = Permission.VIEW_CLUSTER
    operations: ClassVar = {"list": Op(answer=FragmentationOut)}

    def list(self, request: Request) -> Response:
        """Get the idle devices that no gang of a size can use, now and over the next hours.

        The forecast simulates the live jobs; later submits are not part of it.
        """
        return Response(fragmentation_out(fragmentation_view(self.viewer)))


def fragmentation_out(found: FragmentationView) -> FragmentationOut:
    """Return the response body."""
    return FragmentationOut(
        made_at=found.made_at,
        offsets_s=list(found.offsets),
        futures=found.futures,
        chains=[_chain_out(chain) for chain in found.chains],
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
