"""The cell engine of a round: built once per specification, with the running jobs put back."""

from collections import defaultdict
from functools import lru_cache

from scheduling.core.cells import CellEngine, ClusterSpec
from scheduling.core.requests import restored_requests
from scheduling.core.values import ClusterSnapshot


def engine_for(snapshot: ClusterSnapshot) -> CellEngine:
    """The cell engine with health and all running jobs restored from their leases."""
    engine = _pristine(_Same(snapshot.spec)).fresh_copy()
    for node in snapshot.nodes:
        if not node.healthy:
            engine.set_node_health(node.name, healthy=False)
    for node_name, index in sorted(snapshot.bad_devices):
        engine.set_device_health(node_name, index, healthy=False)
    names = {vc.id: vc.name for vc in snapshot.vcs}
    for job in sorted(snapshot.holding, key=lambda job: job.id):
        for request, placements in restored_requests(job, names[job.vc], snapshot.now):
            engine.restore(request, placements)
    return engine


class _Same:
    """A specification compared by identity: snapshots share it as long as nothing changes."""

    __slots__ = ("spec",)

    def __init__(self, spec: ClusterSpec) -> None:
        self.spec = spec

    def __hash__(self) -> int:
        return id(self.spec)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.spec is self.spec


@lru_cache(maxsize=4)
def _pristine(same: _Same) -> CellEngine:
    return CellEngine(same.spec)


def guaranteed_devices(engine: CellEngine, vc: str) -> dict[str, int]:
    """Guaranteed devices of a virtual cluster by type."""
    capacity: dict[str, int] = defaultdict(int)
    for quota in engine.spec.virtual_clusters[vc].quotas:
        chain = engine.topology.chains[quota.chain]
        level = chain.level_named(quota.level)
        if level is not None:
            capacity[chain.leaf_type] += quota.count * chain.sizes[level][1]
    return dict(capacity)
