"""Nodes that guarantees could not use: unhealthy, or closed by an admin, beyond the spare ones."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from scheduling.core.cells import ClusterSpec
from scheduling.core.promises.export import PromiseExport
from scheduling.core.promises.figures import Cause
from scheduling.core.round.engine_setup import empty_engine
from scheduling.core.values import ClusterSnapshot, NodeFacts
from tessera.isolation import NONE


@dataclass(slots=True)
class UnusableNodes:
    """Causes by which the cells of a virtual cluster were too few, in ascending time.

    A cause applies if a chain of its guarantee has more unusable nodes than spare ones.
    """

    states: list[tuple[float, ClusterSnapshot]]
    vc: str
    tenant: int
    _at: int = 0
    _known: dict[int, frozenset[Cause]] = field(default_factory=dict)

    def at(self, now: float) -> frozenset[Cause]:
        """Return the causes at a time, which never decreases."""
        while self._at + 1 < len(self.states) and self.states[self._at + 1][0] <= now:
            self._at += 1
        if self._at not in self._known:
            self._known[self._at] = self._causes(self.states[self._at][1])
        return self._known[self._at]

    def _causes(self, state: ClusterSnapshot) -> frozenset[Cause]:
        topology = empty_engine(state.spec).topology
        facts = {node.name: node for node in state.nodes}
        bad = {name for name, _ in state.bad_devices}
        found: set[Cause] = set()
        for chain in _chains_of(state.spec, self.vc):
            causes = [
                self._cause(facts.get(name), name in bad)
                for name in topology.chains[chain].node_names
            ]
            unusable = [cause for cause in causes if cause is not None]
            if len(unusable) > _spare(state.spec, chain):
                found.update(unusable)
        return frozenset(found)

    def _cause(self, node: NodeFacts | None, is_bad: bool) -> Cause | None:
        if node is None or is_bad or not node.healthy:
            return Cause.HARDWARE
        taken = node.isolation == NONE and node.owner not in (None, self.tenant)
        closed = bool(node.tenants) and self.tenant not in node.tenants
        return Cause.ADMIN if closed or taken or not node.placeable else None


def unusable_nodes(export: PromiseExport) -> UnusableNodes:
    """Return the causes over the span of an export."""
    tenant = next(vc.tenant for vc in export.snapshot.vcs if vc.id == export.vc)
    return UnusableNodes(states=list(_states(export)), vc=export.name, tenant=tenant)


def _states(export: PromiseExport) -> Iterator[tuple[float, ClusterSnapshot]]:
    yield export.snapshot.now, export.snapshot
    for change in sorted(export.changes, key=lambda change: change.at):
        yield (
            change.at,
            replace(
                export.snapshot,
                spec=change.spec,
                nodes=change.nodes,
                bad_devices=change.bad_devices,
            ),
        )


def _chains_of(spec: ClusterSpec, vc: str) -> set[str]:
    share = spec.virtual_clusters[vc]
    engine = empty_engine(spec)
    pinned = {engine.pinned_chain(vc, name) for name in share.pinned}
    return {quota.chain for quota in share.quotas} | {chain for chain in pinned if chain}


def _spare(spec: ClusterSpec, name: str) -> int:
    """Return the number of nodes of a chain that no guarantee needs."""
    engine = empty_engine(spec)
    chain = engine.topology.chains[name]
    needed = 0
    for vc, share in spec.virtual_clusters.items():
        for quota in share.quotas:
            level = chain.level_named(quota.level) if quota.chain == name else None
            needed += quota.count * chain.sizes[level][1] if level is not None else 0
        for pin in share.pinned:
            pool = engine.pool(vc, name, pin) if engine.pinned_chain(vc, pin) == name else None
            needed += sum(mask.bit_count() for mask in pool.masks.values()) if pool else 0
    return len(chain.node_names) - math.ceil(needed / chain.node_size)
