"""Checks of the database invariants from scratch."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from django.db import transaction
from django.db.models import Count, Exists, F, FilteredRelation, Max, OuterRef, Q, QuerySet

from scheduling.clusters.models import Device, Node, PriorityClass
from scheduling.clusters.queries.cpu_pools import stored_pools
from scheduling.clusters.queries.virtual_clusters import spec_in_force
from scheduling.clusters.services.node_rows import state_of
from scheduling.core.cells import feasible
from scheduling.core.cpu_pools import NOTHING, PoolLease, in_use, sizes_of
from scheduling.core.lifecycle import HOLDING
from scheduling.core.sharing.hosts import Consent, consents
from scheduling.enums import LeaseKind, MemberStep
from scheduling.jobs.models import Job
from scheduling.rounds.models import Round
from scheduling.runs.models import Attempt, CpuLease, Lease, Member
from scheduling.topology.current import current_topology
from tessera.isolation import NONE

GONE: Final = (MemberStep.EXITED, MemberStep.RELEASED)
MOST_SHOWN: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One violated invariant.

    Attributes:
        rule: a stable code.
        text: the violation, with the rows.
    """

    rule: str
    text: str


def violations(using: str = "default") -> tuple[Violation, ...]:
    """Return all violations in one database snapshot.

    Args:
        using: the database alias that reads one snapshot.
    """
    checks = (
        _devices_held_twice,
        _attempts_without_leases,
        _jobs_without_attempts,
        _attempts_of_idle_jobs,
        _leases_of_ended_attempts,
        _leases_on_retired_devices,
        _cpu_leases_of_ended_attempts,
        _nodes_with_too_many_cpu_leases,
        _members_of_ended_attempts,
        _members_without_their_leases,
        _guests_without_holders,
        _guests_against_consent,
        _members_against_tenancies,
        _devices_against_topology,
        _promises_that_do_not_fit,
        _node_states,
        _default_priority,
    )
    with transaction.atomic(using=using):
        return tuple(violation for check in checks for violation in check(using))


def _devices_held_twice(using: str) -> Iterator[Violation]:
    rows = (
        Lease.objects.using(using)
        .filter(released_at=None)
        .values_list("device__address", "kind", "slot")
        .annotate(holders=Count("id"))
        .filter(holders__gt=1)
    )
    for address, kind, slot, holders in rows[:MOST_SHOWN]:
        yield Violation(
            rule="device-held-twice",
            text=f"device {address} has {holders} live leases ({kind}, slot {slot})",
        )


def _attempts_without_leases(using: str) -> Iterator[Violation]:
    live = Lease.objects.using(using).filter(attempt=OuterRef("pk"), released_at=None)
    cpus = CpuLease.objects.using(using).filter(attempt=OuterRef("pk"), released_at=None)
    rows = Attempt.objects.using(using).filter(~Exists(live), ~Exists(cpus), ended_at=None)
    for attempt in rows[:MOST_SHOWN]:
        yield Violation(
            rule="open-attempt-without-lease",
            text=f"attempt {attempt.number} of job {attempt.job_id} is open but holds nothing",
        )


def _jobs_without_attempts(using: str) -> Iterator[Violation]:
    is_open = Attempt.objects.using(using).filter(job=OuterRef("pk"), ended_at=None)
    rows = Job.objects.using(using).unscoped().filter(~Exists(is_open), state__in=HOLDING)
    for job_id, state in rows.values_list("id", "state")[:MOST_SHOWN]:
        yield Violation(
            rule="holding-job-without-attempt", text=f"job {job_id} is {state} without an attempt"
        )


def _attempts_of_idle_jobs(using: str) -> Iterator[Violation]:
    rows = Attempt.objects.using(using).filter(ended_at=None).exclude(job__state__in=HOLDING)
    for number, job_id, state in rows.values_list("number", "job_id", "job__state")[:MOST_SHOWN]:
        yield Violation(
            rule="open-attempt-of-idle-job",
            text=f"attempt {number} is open and its job {job_id} is {state}",
        )


def _leases_of_ended_attempts(using: str) -> Iterator[Violation]:
    rows = Lease.objects.using(using).filter(released_at=None, attempt__ended_at__isnull=False)
    for address, job_id in rows.values_list("device__address", "job_id")[:MOST_SHOWN]:
        yield Violation(
            rule="lease-of-ended-attempt",
            text=f"device {address} is still leased to job {job_id}, whose attempt has ended",
        )


def _cpu_leases_of_ended_attempts(using: str) -> Iterator[Violation]:
    rows = CpuLease.objects.using(using).filter(released_at=None, attempt__ended_at__isnull=False)
    for node, job_id in rows.values_list("node__name", "job_id")[:MOST_SHOWN]:
        yield Violation(
            rule="cpu-lease-of-ended-attempt",
            text=f"CPUs of {node} are still leased to job {job_id}, whose attempt has ended",
        )


def _nodes_with_too_many_cpu_leases(using: str) -> Iterator[Violation]:
    """Check nodes whose jobs without devices use more than the devices leave of the node.

    The next round preempts jobs if the share of the devices has grown.
    """
    leases = CpuLease.objects.using(using).filter(released_at=None, member__stop_asked_at=None)
    used = in_use(
        PoolLease(node=node, cpus=cpus, memory=memory)
        for node, cpus, memory in leases.values_list("node__name", "cpus", "memory_bytes")
    )
    sizes = sizes_of(stored_pools(using)) if used else {}
    for name, total in sorted(used.items()):
        size = sizes.get(name, NOTHING)
        if not total.within(size):
            yield Violation(
                rule="node-with-too-many-cpu-leases",
                text=f"node {name} leases {total.cpus:g} CPUs and {total.memory} bytes that "
                f"belong to no device, of {size.cpus:g} and {size.memory}",
            )


def _leases_on_retired_devices(using: str) -> Iterator[Violation]:
    rows = Lease.objects.using(using).filter(released_at=None, device__retired_at__isnull=False)
    for address, job_id in rows.values_list("device__address", "job_id")[:MOST_SHOWN]:
        yield Violation(
            rule="lease-on-retired-device",
            text=f"device {address} is no longer in the topology but is leased to job {job_id}",
        )


def _members_of_ended_attempts(using: str) -> Iterator[Violation]:
    rows = (
        Member.objects.using(using).filter(attempt__ended_at__isnull=False).exclude(step__in=GONE)
    )
    for member_id, step, job_id in rows.values_list("id", "step", "attempt__job_id")[:MOST_SHOWN]:
        yield Violation(
            rule="open-member-of-ended-attempt",
            text=f"member {member_id} of job {job_id} is {step} after the end of its attempt",
        )


def _members_without_their_leases(using: str) -> Iterator[Violation]:
    leased: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for member_id, node_id, index in (
        Lease.objects.using(using)
        .filter(released_at=None)
        .values_list("member_id", "device__node_id", "device__index")
    ):
        leased[member_id].add((node_id, index))
    rows = Member.objects.using(using).filter(attempt__ended_at=None)
    for member_id, node_id, devices in rows.values_list("id", "node_id", "devices"):
        if leased[member_id] != {(node_id, index) for index in devices}:
            yield Violation(
                rule="member-and-leases-differ",
                text=f"member {member_id} uses devices {devices} but leases other devices",
            )


def _guests_without_holders(using: str) -> Iterator[Violation]:
    """Check guests that a round after the end of their holder has neither promoted nor stopped."""
    newest = Round.objects.using(using).aggregate(at=Max("started_at"))["at"]
    if newest is None:
        return
    holds = Lease.objects.using(using).filter(
        device=OuterRef("device"), member=OuterRef("beside"), kind=LeaseKind.USING
    )
    rows = _guests(using).filter(~Exists(holds.exclude(released_at__lt=newest)))
    for job_id, address in rows.values_list("job_id", "device__address")[:MOST_SHOWN]:
        yield Violation(
            rule="guest-without-holder",
            text=f"job {job_id} is a guest of device {address}, whose holder has left",
        )


def _guests_against_consent(using: str) -> Iterator[Violation]:
    """Check guests beside a job that allows no guests, or none of their tenant."""
    rows = _guests(using).values_list(
        "job_id", "job__tenant_id", "beside__attempt__job_id", "beside__attempt__job__tenant_id",
        "beside__attempt__job__spec__sharing",
        "beside__attempt__job__virtual_cluster__guests_default",
        "beside__attempt__job__sharing_stopped_at", "device__guests", "device__node__guests",
    )  # fmt: skip
    for job_id, tenant, holder, holder_tenant, sharing, default, stopped_at, *limits in rows:
        consent = Consent.strictest((sharing or {}).get("guests", default), *limits)
        if stopped_at is not None or not consents(consent, holder_tenant, tenant):
            yield Violation(
                rule="guest-against-consent",
                text=f"job {job_id} is a guest of job {holder}, which does not allow it",
            )


def _guests(using: str) -> QuerySet[Lease]:
    """Return the leases of guests that have no notice to leave."""
    rows = Lease.objects.using(using).filter(kind=LeaseKind.GUEST, released_at=None)
    return rows.filter(member__stop_asked_at=None)


def _members_against_tenancies(using: str) -> Iterator[Violation]:
    """Check members on nodes of other tenants, and unisolated members on nodes without tenancy."""
    is_of_job = Q(tenancy__tenant_id=F("attempt__job__tenant_id"), tenancy__node_id=F("node_id"))
    is_open = Q(tenancy__reset_at=None, tenancy__isnull=False)
    rows = (
        Member.objects.using(using)
        .filter(attempt__ended_at=None)
        .exclude(step__in=GONE)
        .annotate(
            owned=FilteredRelation("node__tenancies", condition=Q(node__tenancies__reset_at=None))
        )
        .filter(
            Q(least_isolation=NONE, tenancy=None)
            | (Q(tenancy__isnull=False) & ~(is_of_job & is_open))
            | (Q(owned__isnull=False) & ~Q(owned__tenant_id=F("attempt__job__tenant_id")))
        )
    )
    columns = ("id", "attempt__job_id", "node__name", "least_isolation")
    for member_id, job_id, node, level in rows.values_list(*columns)[:MOST_SHOWN]:
        yield Violation(
            rule="member-against-tenancy",
            text=f"member {member_id} of job {job_id} (isolation level {level}) is on node"
            f" {node}, which does not belong to its tenant",
        )


def _devices_against_topology(using: str) -> Iterator[Violation]:
    leaves = set(current_topology(using).cells.leaves)
    rows = set(
        Device.objects.using(using).filter(retired_at=None).values_list("address", flat=True)
    )
    for address in sorted(leaves - rows)[:MOST_SHOWN]:
        yield Violation(rule="leaf-without-device", text=f"no device row for leaf {address}")
    for address in sorted(rows - leaves)[:MOST_SHOWN]:
        yield Violation(rule="device-without-leaf", text=f"device {address} is not a leaf")


def _promises_that_do_not_fit(using: str) -> Iterator[Violation]:
    topology = current_topology(using)
    if topology.version:
        answer = feasible(spec_in_force(topology, using))
        if not answer.ok:
            yield Violation(rule="promises-do-not-fit", text=answer.witness)


def _node_states(using: str) -> Iterator[Violation]:
    rows = Node.objects.using(using).filter(removed_at=None)
    for name, state, contact, held in rows.values_list("name", "state", "contact", "held"):
        if state != state_of(contact, held):
            yield Violation(
                rule="node-state-is-derived",
                text=f"node {name} is {state} with contact {contact} and {held or 'not held'}",
            )


def _default_priority(using: str) -> Iterator[Violation]:
    classes = PriorityClass.objects.using(using)
    defaults = classes.aggregate(n=Count("id", filter=Q(is_default=True)), all=Count(F("id")))
    if defaults["all"] and defaults["n"] != 1:
        yield Violation(
            rule="one-default-priority-class",
            text=(f"{defaults['n']} priority classes are the default"),
        )
