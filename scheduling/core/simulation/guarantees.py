"""Conversion of a guaranteed number of devices to cells of the largest possible levels."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from scheduling.core.cells import ClusterSpec, Quota, VcSpec
from scheduling.core.cells.feasibility import Feasibility, feasible
from scheduling.core.round.engine_setup import empty_engine, guaranteed_devices


class GuaranteeError(ValueError):
    """The cluster cannot guarantee this number of devices.

    Attributes:
        device_type: the type without enough cells.
        devices: the requested number.
        possible: the largest part of it that fits.
        witness: the chain and level with too few cells.
    """

    def __init__(self, device_type: str, devices: int, possible: int, witness: str) -> None:
        super().__init__(witness)
        self.device_type = device_type
        self.devices = devices
        self.possible = possible
        self.witness = witness


def with_guarantee(spec: ClusterSpec, vc: str, wanted: Mapping[str, int]) -> ClusterSpec:
    """Change the guarantee of a virtual cluster to a number of devices by type.

    Quotas of other types do not change. Pinned cells remain if they fit the number.

    Args:
        spec: a specification whose guarantees fit.
        vc: name of the virtual cluster.
        wanted: devices by type.

    Raises:
        GuaranteeError: the cells that no other guarantee claims are too few.
    """
    for device_type, devices in sorted(wanted.items()):
        held = guaranteed_devices(empty_engine(spec), vc).get(device_type, 0)
        if held != devices:
            spec = _with_devices(spec, vc, device_type, devices)
    return spec


def _with_devices(spec: ClusterSpec, vc: str, device_type: str, devices: int) -> ClusterSpec:
    spec, left = _without_quotas(spec, vc, device_type, devices)
    failed = Feasibility(ok=True)
    for chain, level, size in _levels(spec, device_type):
        count, found = _most_cells(spec, vc, Quota(chain=chain, level=level, count=left // size))
        if count < left // size and failed.ok:
            failed = found
        if count:
            spec = _with_quota(spec, vc, Quota(chain=chain, level=level, count=count))
            left -= count * size
    if left:
        witness = failed.witness or f"no cells of type {device_type}"
        raise GuaranteeError(device_type, devices, devices - left, witness)
    return spec


def _without_quotas(
    spec: ClusterSpec, vc: str, device_type: str, devices: int
) -> tuple[ClusterSpec, int]:
    """Remove the quotas of a type; also return the devices not covered by pinned cells."""
    topology = empty_engine(spec).topology
    share = spec.virtual_clusters.get(vc, VcSpec())
    chains = {n for n, chain in topology.chains.items() if chain.leaf_type == device_type}
    others = tuple(quota for quota in share.quotas if quota.chain not in chains)
    bare = _with_share(spec, vc, replace(share, quotas=others))
    pinned = guaranteed_devices(empty_engine(bare), vc).get(device_type, 0)
    if pinned <= devices:
        return bare, devices - pinned
    addresses = {address for n in chains for address in topology.chains[n].address}
    kept = {pin: at for pin, at in share.pinned.items() if at not in addresses}
    return _with_share(spec, vc, VcSpec(quotas=others, pinned=kept)), devices


def _levels(spec: ClusterSpec, device_type: str) -> Iterator[tuple[str, str, int]]:
    """Yield chain, level and devices of the cells of a type, the largest cells first."""
    chains = empty_engine(spec).topology.chains
    found = [
        (-chain.sizes[level][1], name, chain.types[level])
        for name, chain in chains.items()
        if chain.leaf_type == device_type
        for level in range(1, chain.levels + 1)
    ]
    return ((name, level, -size) for size, name, level in sorted(found))


def _most_cells(spec: ClusterSpec, vc: str, quota: Quota) -> tuple[int, Feasibility]:
    """Return the largest count up to the quota's that fits, and the check of one cell more."""
    low, high, failed = 0, quota.count, Feasibility(ok=True)
    while low < high:
        middle = (low + high + 1) // 2
        found = feasible(_with_quota(spec, vc, replace(quota, count=middle)))
        if found.ok:
            low = middle
        else:
            high, failed = middle - 1, found
    return low, failed


def _with_quota(spec: ClusterSpec, vc: str, quota: Quota) -> ClusterSpec:
    share = spec.virtual_clusters[vc]
    return _with_share(spec, vc, replace(share, quotas=(*share.quotas, quota)))


def _with_share(spec: ClusterSpec, vc: str, share: VcSpec) -> ClusterSpec:
    return replace(spec, virtual_clusters={**spec.virtual_clusters, vc: share})
