"""Snapshot of a round, read by a fixed number of queries in one consistent view."""

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from django.db import transaction
from django.db.models import Max, Subquery, TextField
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast

from scheduling.clusters.models import (
    ClusterRules,
    PinnedCell,
    VcQuota,
    VirtualCluster,
)
from scheduling.common.storages import storage_facts
from scheduling.core.cells import ClusterSpec, Quota, VcSpec
from scheduling.core.lifecycle import HOLDING, JobState
from scheduling.core.round.node_tenancy import stricter
from scheduling.core.round.policy_answers import is_plain
from scheduling.core.round.ports import ALL_PORTS
from scheduling.core.sharing.hosts import Consent
from scheduling.core.sweeps import LABEL
from scheduling.core.values import (
    ClusterSnapshot,
    VcFacts,
)
from scheduling.enums import LeaseKind
from scheduling.jobs.models import Job, JobDependency, Sweep
from scheduling.rounds.models import Round
from scheduling.rounds.snapshot.cpu_jobs import cpu_work
from scheduling.rounds.snapshot.grid_tables import plan_tables
from scheduling.rounds.snapshot.guests import VcSharing, with_sharing
from scheduling.rounds.snapshot.live_jobs import (
    YES,
    Leaves,
    LiveJobRow,
    StoredReason,
    at_their_size,
    guest_jobs,
    holding_jobs,
    live_rows,
    queued_jobs,
    stored_reason,
)
from scheduling.rounds.snapshot.node_rows import (
    device_rows,
    largest_nodes,
    node_facts,
    node_rows,
    pools_of_rows,
)
from scheduling.rounds.snapshot.peers import with_pairs
from scheduling.rounds.snapshot.performance_facts import device_memory, known_of
from scheduling.runs.models import Attempt, Lease, Member
from scheduling.topology.stored import NO_CELLS, StoredTopology
from tenants.models import Membership
from tessera.isolation import NONE

POLICY_SECONDS: Final = 5.0
"""Default time limit of a virtual cluster's policy, unless a round's settings set one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundConfig:
    """The settings of rounds, as values.

    Attributes:
        round_seconds: the regular interval.
        images_required: whether a job with an image waits for a node with a container engine.
        using: database alias with one consistent view per transaction.
        policy_seconds: time limit of the policy of one virtual cluster.
    """

    round_seconds: float
    images_required: bool
    using: str = "snapshot"
    policy_seconds: float = field(default_factory=lambda: POLICY_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A snapshot with the rows that the commit needs.

    Attributes:
        reasons: stored reason by queued job.
        device_ids: primary key of the device by leaf address.
        node_ids: primary key of the node by name.
        device_types: type of the device by leaf address.
    """

    snapshot: ClusterSnapshot
    reasons: Mapping[int, StoredReason]
    device_ids: Mapping[str, int]
    node_ids: Mapping[str, int]
    device_types: Mapping[str, str] = field(default_factory=dict)


def next_round_number(using: str) -> int:
    """Return the number of the next round.

    Read it before the snapshot, so that a commit in between makes the round stale.
    """
    newest = Round.objects.using(using).aggregate(newest=Max("number"))["newest"]
    return (newest or 0) + 1


def take_snapshot(*, number: int, now: datetime, config: RoundConfig) -> Reading:
    """Return the snapshot of round ``number``, read in one transaction."""
    with transaction.atomic(using=config.using):
        return _read(number, now, config)


def cluster_spec(using: str = "default") -> tuple[int, ClusterSpec]:
    """Return the topology version, and the topology with all guarantees."""
    topology = StoredTopology.newest(using)
    if not topology.version:
        return 0, NO_CELLS
    quotas: dict[str, list[tuple[str, str, int]]] = defaultdict(list)
    for name, chain, level, count in (
        VcQuota.objects.using(using)
        .order_by("virtual_cluster__name", "chain", "level")
        .values_list("virtual_cluster__name", "chain", "level", "count")
    ):
        quotas[name].append((chain, level, count))
    pinned: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for name, cell, address in (
        PinnedCell.objects.using(using)
        .order_by("virtual_cluster__name", "name")
        .values_list("virtual_cluster__name", "name", "address")
    ):
        pinned[name].append((cell, address))
    names = tuple(
        VirtualCluster.objects.unscoped()
        .using(using)
        .filter(archived_at=None)
        .order_by("name")
        .values_list("name", flat=True)
    )
    shares = tuple((name, tuple(quotas[name]), tuple(pinned[name])) for name in names)
    return topology.version, _spec_of(topology, shares)


@lru_cache(maxsize=8)
def _spec_of(topology: StoredTopology, shares: tuple[Any, ...]) -> ClusterSpec:
    return replace(
        topology.spec,
        virtual_clusters={
            name: VcSpec(
                quotas=tuple(Quota(chain=c, level=t, count=n) for c, t, n in quotas),
                pinned=dict(pinned),
            )
            for name, quotas, pinned in shares
        },
    )


def _read(number: int, now: datetime, config: RoundConfig) -> Reading:
    using = config.using
    version, spec = cluster_spec(using)
    every = live_rows(using)
    rows = [row for row in every if row.devices]
    queued = [row for row in rows if row.state == JobState.QUEUED]
    nodes, devices = node_rows(using), device_rows(using)
    vcs, sharing = _vcs(using)
    curious = [facts.id for facts, wants_more in vcs if wants_more]
    leases, sizes, beside = _leases_by_job(using)
    caps, after = _user_caps(using), _open_dependencies(using)
    waiting = [row for row in every if row.state == JobState.QUEUED]
    turns = _turns(waiting, using)
    holding = holding_jobs(
        at_their_size(
            (row for row in rows if row.state in HOLDING and row.id not in beside), sizes
        ),
        caps,
        leases,
    )
    snapshot = ClusterSnapshot(
        now=now.timestamp(),
        round_number=number,
        round_seconds=config.round_seconds,
        seed=number,
        topology_version=version,
        spec=spec,
        vcs=tuple(facts for facts, _ in vcs),
        nodes=node_facts(nodes, devices),
        queued=queued_jobs(queued, caps, after, turns),
        holding=holding,
        bad_devices=frozenset(
            (node, index) for *_, healthy, _, _, _, node, index, _ in devices if healthy not in YES
        ),
        suspect_devices=frozenset(
            (node, index) for *_, node, index, suspect in devices if suspect is not None
        ),
        images_required=config.images_required,
        known=known_of(using, curious, now),
        device_memory=device_memory(
            using, ((node_id, index, kind) for _, node_id, *_, kind, _, index, _ in devices)
        )
        if curious
        else {},
        ports_left=_ports_left(using),
        storages=storage_facts(using, {facts.id: facts.tenant for facts, _ in vcs}),
        **plan_tables(using, rows, largest_nodes(devices)),
        **cpu_work(pools_of_rows(nodes, devices), every, after, turns, using),
    )
    if sharing or beside:
        running = guest_jobs((row for row in rows if row.id in beside), beside)
        snapshot = with_sharing(snapshot, running, sharing, now, using)
        snapshot = with_pairs(snapshot, running, sharing, curious, now=now, using=using)
    return Reading(
        snapshot=snapshot,
        reasons={row.id: stored_reason(row.reason_code, row.reason_json) for row in waiting},
        device_ids={address: pk for pk, _, address, *_ in devices},
        node_ids={name: pk for pk, name, *_ in nodes},
        device_types={address: kind for _, _, address, _, _, _, kind, *_ in devices},
    )


def _vcs(using: str) -> tuple[tuple[tuple[VcFacts, bool], ...], dict[int, VcSharing]]:
    """Return the virtual clusters, each with whether a policy or shadow policy reads job facts.

    The rules about guests by virtual cluster follow; they are empty if the cluster does not share.
    """
    rows = list(
        VirtualCluster.objects.unscoped()
        .using(using)
        .annotate(
            cluster_least=Subquery(ClusterRules.objects.values("least_isolation")[:1]),
            cluster_shares=Subquery(ClusterRules.objects.values("sharing")[:1]),
        )
        .order_by("name")
    )
    sharing = {
        vc.pk: VcSharing(consent=Consent(vc.guests_default), most_guests=vc.max_guests)
        for vc in rows
        if vc.cluster_shares and vc.archived_at is None
    }
    found = [(_vc_facts(vc), bool(vc.shadows) and vc.archived_at is None) for vc in rows]
    return tuple((facts, shadowed or not is_plain(facts)) for facts, shadowed in found), sharing


def _vc_facts(vc: VirtualCluster) -> VcFacts:
    return VcFacts(
        id=vc.pk,
        name=vc.name,
        tenant=vc.tenant_id,
        policy=vc.policy,
        policy_args=vc.policy_args,
        policy_state=vc.policy_state,
        max_devices_per_user=vc.max_devices_per_user,
        max_opportunistic_devices=vc.max_opportunistic_devices,
        policy_fault=vc.policy_fault,
        least_isolation=stricter(vc.least_isolation, cluster_least(vc)),
    )


def cluster_least(vc: VirtualCluster) -> str:
    """Return the cluster's minimum isolation level, which was read with a virtual cluster."""
    return getattr(vc, "cluster_least", None) or NONE


def _leases_by_job(
    using: str,
) -> tuple[Mapping[int, Leaves], Mapping[int, Any], dict[int, Leaves]]:
    """Return leaves by member, by job; the current demands of resized jobs; leaves of guests."""
    beside: dict[int, Leaves] = {}
    sizes: dict[int, str] = {}
    members: dict[int, dict[int, list[tuple[str, str]]]] = defaultdict(lambda: defaultdict(list))
    for job_id, member_id, address, virtual, demand, kind in (
        Lease.objects.using(using)
        .filter(released_at=None)
        .order_by("job_id", "member_id", "id")
        .annotate(demand_text=Cast("attempt__demand", TextField()))
        .values_list(
            "job_id", "member_id", "device__address", "virtual_cell", "demand_text", "kind"
        )
    ):
        if kind == LeaseKind.GUEST:
            beside[job_id] = (((address, ""),),)
            continue
        if demand is not None:
            sizes[job_id] = demand
        members[job_id][member_id].append((address, virtual))
    return (
        {
            job_id: tuple(tuple(leaves) for leaves in by_member.values())
            for job_id, by_member in members.items()
        },
        {job_id: json.loads(demand) for job_id, demand in sizes.items()},
        beside,
    )


def _user_caps(using: str) -> dict[tuple[int, int], int]:
    rows = (
        Membership.objects.unscoped()
        .using(using)
        .exclude(max_devices=None)
        .values_list("tenant_id", "user_id", "max_devices")
    )
    return {(tenant, user): cap for tenant, user, cap in rows if cap is not None}


def _ports_left(using: str) -> int:
    """Return the number of ports that no open attempt holds."""
    open_ones = Attempt.objects.using(using).filter(ended_at=None)
    members = Member.objects.using(using).filter(attempt__ended_at=None).exclude(ports={})
    taken = open_ones.count() + sum(
        len(group) for ports in members.values_list("ports", flat=True) for group in ports.values()
    )
    return ALL_PORTS - taken


def _open_dependencies(using: str) -> Mapping[int, list[tuple[int, str]]]:
    after: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for job_id, other, state in (
        JobDependency.objects.using(using)
        .filter(job__state=JobState.QUEUED)
        .exclude(after__state=JobState.SUCCEEDED)
        .order_by("after_id")
        .values_list("job_id", "after_id", "after__state")
    ):
        after[job_id].append((other, state))
    return after


def _turns(queued: list[LiveJobRow], using: str) -> Mapping[int, int]:
    """Return the maximum number of concurrent jobs of the sweep, by job that its sweep holds."""
    if not any(row.held_text in YES for row in queued):
        return {}
    open_ones = Sweep.objects.unscoped().using(using).filter(is_open=True)
    most = {
        (tenant, label): at_a_time
        for tenant, label, at_a_time in open_ones.values_list("tenant", "label", "max_parallel")
        if at_a_time is not None
    }
    if not most:
        return {}
    held = Job.objects.unscoped().using(using).filter(state=JobState.QUEUED, held=True)
    rows = held.filter(held_by=None).annotate(of_sweep=KeyTextTransform(LABEL, "labels"))
    return {
        pk: most[tenant, label]
        for pk, tenant, label in rows.values_list("id", "tenant", "of_sweep")
        if (tenant, label) in most
    }
