"""Check that guarantees fit under node isolation, which may require separate nodes per tenant."""

from collections.abc import Iterable, Mapping
from typing import Final

from django.db.models import FilteredRelation, Q

from scheduling.clusters.models import ClusterRules, Node, VirtualCluster
from scheduling.core.cells import ClusterSpec
from scheduling.core.cells.reserving import NodeRules, Shortage, reserve
from scheduling.core.messages import message, sentence
from scheduling.core.round.engine_setup import empty_engine
from scheduling.core.round.node_restrictions import barred_nodes
from scheduling.core.round.node_tenancy import stricter
from scheduling.core.values import NodeFacts, VcFacts
from tessera.isolation import NAMESPACE, NONE
from tessera.messages import Parameter

SHOWN: Final = 3


def lost_places(
    before: ClusterSpec,
    after: ClusterSpec,
    tenants: Mapping[str, int] | None = None,
    levels: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    """Return a sentence for each quota of ``after`` that ceases to fit under the node rules.

    Each sentence names the nodes and has no full stop.

    Args:
        before: the current specification.
        after: the new specification; its quotas fit as numbers of cells.
        tenants: tenant ID of virtual clusters that are not stored yet, by name.
        levels: new minimum isolation level of virtual clusters whose level changes, by name.
    """
    rules = _rules_in_force(after, tenants or {}, levels or {})
    short = reserve(empty_engine(after), rules).short if rules.bind else ()
    if not short:
        return ()
    if not levels:
        return _witnesses(short, after, rules, reserve(empty_engine(before), rules).missing())
    return _witnesses(short, after, rules, missing_places(before))


def missing_places(spec: ClusterSpec) -> Mapping[str, int]:
    """Return devices of quotas that do not fit under the current rules, by virtual cluster."""
    rules = _rules_in_force(spec, {}, {})
    return reserve(empty_engine(spec), rules).missing() if rules.bind else {}


def places_lost(spec: ClusterSpec, missing: Mapping[str, int]) -> tuple[str, ...]:
    """Return a sentence for each quota that does not fit any more after a change of the rules.

    Args:
        spec: the current specification.
        missing: ``missing_places`` before the change of the rules.
    """
    rules = _rules_in_force(spec, {}, {})
    short = reserve(empty_engine(spec), rules).short if rules.bind else ()
    return _witnesses(short, spec, rules, missing)


def _witnesses(
    short: Iterable[Shortage], spec: ClusterSpec, rules: NodeRules, missing: Mapping[str, int]
) -> tuple[str, ...]:
    """Return a sentence for each shortage of virtual clusters that lack more than ``missing``."""
    found = tuple(short)
    lost: dict[str, int] = {}
    for shortage in found:
        lost[shortage.vc] = lost.get(shortage.vc, 0) + shortage.devices
    return tuple(
        _witness(shortage, spec, rules)
        for shortage in found
        if lost[shortage.vc] > missing.get(shortage.vc, 0)
    )


def _rules_in_force(
    spec: ClusterSpec, tenants: Mapping[str, int], levels: Mapping[str, str]
) -> NodeRules:
    """Return the current node rules; without isolation rules, rules that restrict nothing."""
    nodes = _node_facts()
    if not any(node.isolation == NONE or node.owner or node.tenants for node in nodes) and not (
        levels or _least_levels_are_set()
    ):
        return NodeRules(tenant_of={}, owners={})
    return _rules(nodes, spec, tenants, levels)


def _node_facts() -> tuple[NodeFacts, ...]:
    """Return tenant-related facts of the nodes; an unprobed node accepts every tenant."""
    rows = (
        Node.objects.filter(removed_at=None)
        .annotate(
            open_tenancy=FilteredRelation("tenancies", condition=Q(tenancies__reset_at=None))
        )
        .order_by("name")
        .values_list(
            "name", "isolation_level", "open_tenancy__tenant_id", "dedicated_to", "has_docker"
        )
    )
    return tuple(
        NodeFacts(
            name=name,
            placeable=True,
            healthy=True,
            has_docker=has_docker,
            cpus_per_device=0.0,
            memory_per_device=0,
            isolation=level or NAMESPACE,
            owner=owner,
            tenants=frozenset(dedicated),
        )
        for name, level, owner, dedicated, has_docker in rows
    )


def _least_levels_are_set() -> bool:
    return (
        ClusterRules.objects.exclude(least_isolation=NONE).exists()
        or VirtualCluster.objects.unscoped().exclude(least_isolation=NONE).exists()
    )


def _rules(
    nodes: Iterable[NodeFacts],
    spec: ClusterSpec,
    tenants: Mapping[str, int],
    levels: Mapping[str, str],
) -> NodeRules:
    least = ClusterRules.objects.values_list("least_isolation", flat=True).first() or NONE
    stored = {
        name: (tenant, level)
        for name, tenant, level in VirtualCluster.objects.unscoped().values_list(
            "name", "tenant_id", "least_isolation"
        )
    }
    # A new virtual cluster without a known tenant counts as one of a separate tenant.
    strangers = {name: -2 - place for place, name in enumerate(sorted(spec.virtual_clusters))}
    vcs = []
    for name in spec.virtual_clusters:
        tenant, level = stored.get(name, (tenants.get(name, strangers[name]), NONE))
        vcs.append(
            VcFacts(
                id=0,
                name=name,
                tenant=tenant,
                policy="",
                least_isolation=stricter(levels.get(name, level), least),
            )
        )
    return NodeRules(
        tenant_of={vc.name: vc.tenant for vc in vcs},
        owners={
            node.name: node.owner
            for node in nodes
            if node.isolation == NONE or node.owner is not None
        },
        barred=barred_nodes(nodes, vcs),
    )


def _witness(shortage: Shortage, spec: ClusterSpec, rules: NodeRules) -> str:
    """Return a sentence with the quota that does not fit, and the nodes that prevent it."""
    tenant = rules.tenant_of[shortage.vc]
    there = empty_engine(spec).rosters[shortage.chain].ledger.topology.node_names
    owned = [name for name in there if rules.owners.get(name) not in (None, tenant)]
    single = [name for name in there if name in rules.owners]
    barred = [name for name in there if name in rules.barred.get(shortage.vc, frozenset())]
    facts: dict[str, Parameter] = {
        "name": shortage.vc,
        "n": shortage.cells,
        "level": shortage.level,
    }
    if owned:
        return sentence("no-place-owned", nodes=_some(owned), **facts)
    if barred:
        return sentence("no-place-barred", nodes=_some(barred), **facts)
    return sentence("no-place-single-tenant", nodes=_some(single), **facts)


def _some(names: list[str]) -> Parameter:
    shown = ", ".join(names[:SHOWN])
    return message("each-of", names=shown) if len(names) > 1 else shown
