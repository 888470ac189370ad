"""Jobs that policies may pair on a device, running pairs, and their measured paces, for a round.

Nothing is read here while the cluster does not share, or while no policy uses more than gangs and
arrivals.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from scheduling.clusters.models import Device
from scheduling.core.jobspec import Demand
from scheduling.core.round.declared_terms import APPLICATION_LABEL
from scheduling.core.sharing.hosts import Consent, GuestNeed
from scheduling.core.sharing.pairs import Paces, PairRecord, application_of
from scheduling.core.sharing.peers import MEASURED_SECONDS
from scheduling.core.values import ClusterSnapshot, HeldGuest, HeldPeer, HoldingJob, JobFacts
from scheduling.enums import JobClass, NodeState
from scheduling.jobs.models import Job
from scheduling.rounds.snapshot.guests import (
    PEAK_FACTOR,
    WITHOUT_GUESTS,
    GuestLease,
    VcSharing,
    guest_leases,
    paces_of_pairs,
)
from scheduling.runs.models import SharedDevice

FRESH: Final = timedelta(minutes=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SharedType:
    """Whether devices of a type can be shared, and whether they are GPUs."""

    is_shared: bool
    is_gpu: bool


def with_pairs(
    snapshot: ClusterSnapshot,
    jobs: Mapping[int, HoldingJob],
    sharing: Mapping[int, VcSharing],
    policies: Sequence[int],
    *,
    now: datetime,
    using: str,
) -> ClusterSnapshot:
    """Add the jobs that policies may pair, and those that share a device as equals.

    Args:
        snapshot: with its hosts.
        jobs: the running guests and equals, by ID.
        sharing: rules about guests by virtual cluster; empty if the cluster does not share.
        policies: virtual clusters whose policies use more than gangs and arrivals.
        now: time of the snapshot.
        using: database alias.
    """
    needs = peer_needs(using, sharing, policies, snapshot.known)
    leases = guest_leases(using) if jobs else ()
    return replace(
        snapshot,
        peers=held_peers(using, leases, jobs, snapshot.known, now),
        peer_needs=needs,
        pair_paces=pair_paces(using, needs) if needs else {},
    )


def peer_needs(
    using: str,
    rules: Mapping[int, VcSharing],
    policies: Collection[int],
    known: Mapping[int, JobFacts],
) -> dict[int, GuestNeed]:
    """Return the device memory of the jobs that policies may pair, by job.

    A job may be paired if it is guaranteed, has one device, allows guests, has a known upper bound
    of its device memory, and all devices of its types can be shared.

    Args:
        using: database alias.
        rules: by virtual cluster; empty if the cluster does not share.
        policies: virtual clusters whose policies may plan pairs.
        known: facts of their jobs.
    """
    able = [vc for vc in policies if vc in rules and rules[vc].most_guests > 0]
    types = _types(using) if able else {}
    if not any(kind.is_shared for kind in types.values()):
        return {}
    rows = (
        Job.objects.unscoped()
        .using(using)
        .live()
        .filter(
            virtual_cluster__in=able,
            job_class=JobClass.GUARANTEED,
            devices=1,
            sharing_stopped_at=None,
        )
        .order_by("id")
        .values_list(
            "id", "virtual_cluster_id", "tenant_id", "name", "labels", "demand", "spec__sharing"
        )
    )
    found = {}
    for pk, vc, tenant, name, labels, demand, sharing in rows:
        consent = (sharing or {}).get("guests", rules[vc].consent)
        if consent == Consent.NONE:
            continue
        facts = known.get(pk)
        peak = facts.facts.memory_peak if facts is not None else None
        floor = _memory(Demand.from_json(demand), types, peak or 0)
        if floor:
            application = application_of(tenant, labels.get(APPLICATION_LABEL), name)
            found[pk] = GuestNeed(floor=floor, wants=floor, application=application)
    return found


def _types(using: str) -> dict[str, _SharedType]:
    """Return the types of devices; a type can be shared if all its usable devices can."""
    rows = Device.objects.using(using).filter(
        retired_at=None, node__removed_at=None, node__state=NodeState.READY
    )
    found: dict[str, _SharedType] = {}
    for kind, is_gpu, modes, *limits in rows.values_list(
        "device_type", "is_gpu", "sharing_modes", "guests", "node__guests"
    ):
        is_shared = Consent.NONE not in limits and bool(set(modes) - WITHOUT_GUESTS)
        before = found.get(kind)
        found[kind] = _SharedType(
            is_shared=is_shared and (before is None or before.is_shared), is_gpu=is_gpu
        )
    return found


def _memory(demand: Demand, types: Mapping[str, _SharedType], peak: int) -> int:
    """Return the upper bound of the memory of a job on each of its devices; 0 if unknown.

    The memory of a slot is the memory of its instance, which has a limit.
    """
    (member, *others) = demand.members
    kinds = [types.get(kind) for kind in member.device_types] or list(types.values())
    if others or demand.devices != 1 or any(kind is None or not kind.is_shared for kind in kinds):
        return 0
    bounds = {
        int(PEAK_FACTOR * peak) if kind is not None and kind.is_gpu else member.memory or 0
        for kind in kinds
    }
    return max(bounds) if all(bounds) else 0


def held_peers(
    using: str,
    leases: Iterable[GuestLease],
    jobs: Mapping[int, HoldingJob],
    known: Mapping[int, JobFacts],
    now: datetime,
) -> tuple[HeldPeer, ...]:
    """Return the running jobs that share devices as equals, with their measured paces."""
    running = [lease for lease in leases if lease.is_peer and lease.job in jobs]
    if not running:
        return ()
    states = _states(using, [lease.address for lease in running], now)
    return tuple(
        HeldPeer(
            guest=HeldGuest(
                job=jobs[lease.job],
                address=lease.address,
                node=lease.node,
                index=lease.index,
                slot=lease.slot,
                holder=lease.holder,
            ),
            turn_seconds=lease.turn_seconds,
            paces=_paces(lease, states.get(lease.address), known, now),
        )
        for lease in running
    )


def _states(
    using: str, addresses: Collection[str], now: datetime
) -> dict[str, tuple[int, float | None, list[Any]]]:
    rows = SharedDevice.objects.using(using).filter(
        device__address__in=addresses, at__gt=now - FRESH
    )
    return {
        address: (holder, loss, guests)
        for address, holder, loss, guests in rows.values_list(
            "device__address", "holder_id", "loss", "guests"
        )
    }


def _paces(
    lease: GuestLease,
    state: tuple[int, float | None, list[Any]] | None,
    known: Mapping[int, JobFacts],
    now: datetime,
) -> Paces | None:
    """Return the paces of holder and job, if the pair has run long enough.

    The job's pace is that of its steps against those of earlier attempts with a device of its own;
    without such an attempt, the share of the time in which it works.
    """
    if state is None or lease.turn_seconds or lease.began is None:
        return None
    holder, loss, guests = state
    if holder != lease.holder_member or loss is None or len(guests) != 1:
        return None
    if (now - lease.began).total_seconds() < MEASURED_SECONDS:
        return None
    pace = _pace_of_steps(lease, known, now)
    if pace is None:
        pace = guests[0].get("duty")
    if pace is None:
        return None
    return Paces(min(1.0, max(0.0, 1.0 - loss)), min(1.0, max(0.0, float(pace))))


def _pace_of_steps(
    lease: GuestLease, known: Mapping[int, JobFacts], now: datetime
) -> float | None:
    facts = known.get(lease.job)
    alone = [run for run in facts.seen if run.type == lease.device_type] if facts else []
    if not alone or not lease.steps or lease.began is None:
        return None
    rate = sum(run.steps for run in alone) / sum(run.seconds for run in alone)
    return lease.steps / (now - lease.began).total_seconds() / rate if rate > 0 else None


def pair_paces(
    using: str, needs: Mapping[int, GuestNeed]
) -> dict[str, dict[str, dict[str, PairRecord]]]:
    """Return the measured pairs among some jobs, as in a snapshot."""
    names = {need.application for need in needs.values()}
    found: dict[str, dict[str, dict[str, PairRecord]]] = defaultdict(dict)
    for (holder, kind), others in sorted(paces_of_pairs(using, names).items()):
        of_type = {name: others[name] for name in sorted(others.keys() & names)}
        if of_type:
            found[holder][kind] = of_type
    return dict(found)
