"""Decisions of shadow policies by round, their totals, and audits of the sharing promise."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import date, datetime
from typing import Any, Final

from django.db.models import Avg, Count, Max, Min, Q, QuerySet, Sum

from scheduling.clusters.models import VirtualCluster
from scheduling.clusters.queries.virtual_clusters import virtual_cluster_for
from scheduling.core.messages import sentence
from scheduling.core.promises.figures import Verdict, figures
from scheduling.jobs.models import Job
from scheduling.rounds.models import Round
from scheduling.what_if.models import PromiseAudit, ShadowDecision, WhatIf, WhatIfKind
from tenants.errors import NotFoundError
from tenants.roles import Permission, Role
from tenants.viewers import Viewer


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowRow:
    """The decision of a shadow policy in one round.

    Attributes:
        agrees: whether it would have started and stopped the same jobs.
        jobs: jobs that it would have started, left queued or stopped; None if the file is pruned.
    """

    number: int
    at: datetime
    virtual_cluster: str
    policy: str
    policy_args: Mapping[str, Any]
    duration_ms: float
    fault: str
    starts: int
    both: int
    only_shadow: int
    only_live: int
    leaving: int
    agrees: bool
    jobs: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowTotal:
    """Totals of a shadow policy over many rounds.

    Attributes:
        rounds: number of rounds that it decided.
        agreeing: number of rounds without a difference.
        only_shadow: number of starts that only the shadow policy decided.
        only_live: number of starts that only the live policy decided.
        faults: number of rounds in which it failed.
    """

    virtual_cluster: str
    policy: str
    policy_args: Mapping[str, Any]
    rounds: int
    agreeing: int
    both: int
    only_shadow: int
    only_live: int
    leaving: int
    faults: int
    mean_ms: float
    max_ms: float
    since: datetime
    until: datetime


_SUMMED: Final = tuple(item.name for item in fields(ShadowTotal) if item.name != "virtual_cluster")


def any_shadows() -> bool:
    """Return whether any virtual cluster has a shadow policy."""
    rows = VirtualCluster.objects.unscoped().filter(archived_at=None)
    return rows.exclude(shadows=[]).exists()


def round_shadows(
    viewer: Viewer, number: int, *, read: Callable[[Round], Sequence[Mapping[str, Any]]]
) -> tuple[ShadowRow, ...]:
    """Return the shadow decisions of one round in virtual clusters whose jobs the viewer may see.

    Args:
        viewer: the reader.
        number: number of the round.
        read: reads the stored decisions of the round.

    Raises:
        NotFoundError: the round is unknown, or its row has been pruned.
    """
    viewer.require(Permission.VIEW_CLUSTER, what=sentence("the-rounds"))
    stored = Round.objects.filter(number=number).first()
    if stored is None:
        raise NotFoundError(sentence("no-such-round"), field="number", value=number)
    rows = list(_of_viewer(viewer).filter(round=stored).order_by("virtual_cluster__name", "id"))
    answers = read(stored) if rows else []
    jobs = {(answer["virtual_cluster"], answer["kind"]): answer for answer in answers}
    return tuple(_row(row, jobs.get((row.virtual_cluster_id, row.kind))) for row in rows)


def shadow_totals(
    viewer: Viewer, key: int | str, *, since: datetime | None = None
) -> tuple[ShadowTotal, ...]:
    """Return the totals of each shadow policy of a virtual cluster, the newest policy first.

    Raises:
        NotFoundError: the virtual cluster is unknown, or the viewer may not see it.
    """
    vc = virtual_cluster_for(viewer, key)
    return _totals(_of_viewer(viewer).filter(virtual_cluster=vc), since)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyInForce:
    """A virtual cluster with its policy and its shadow policies.

    Attributes:
        fault: error because of which FIFO replaces the policy; empty if the policy works.
        shadows: the current shadow policies, each with ``policy`` and ``policy_args``.
        totals: totals of current and earlier shadow policies.
        can_edit: whether the viewer may change the virtual cluster.
    """

    id: int
    name: str
    tenant: str
    policy: str
    policy_args: Mapping[str, Any]
    fault: str
    fault_at: datetime | None
    shadows: tuple[Mapping[str, Any], ...]
    totals: tuple[ShadowTotal, ...]
    version: int
    can_edit: bool


def policies_in_force(viewer: Viewer, *, since: datetime) -> tuple[PolicyInForce, ...]:
    """Return the virtual clusters whose jobs the viewer may see, by name; two queries.

    Args:
        viewer: the reader.
        since: start of the period of the totals.
    """
    rows = [
        vc
        for vc in VirtualCluster.objects.visible_to(viewer)
        .filter(archived_at=None)
        .order_by("name")
        if viewer.can(Permission.VIEW_JOBS, vc.tenant_id)
    ]
    decisions = ShadowDecision.objects.filter(virtual_cluster__in=[vc.pk for vc in rows])
    totals: dict[str, list[ShadowTotal]] = defaultdict(list)
    for total in _totals(decisions, since):
        totals[total.virtual_cluster].append(total)
    can_edit = viewer.can(Permission.EDIT_VC)
    return tuple(
        PolicyInForce(
            id=vc.pk,
            name=vc.name,
            tenant=viewer.name_of(vc.tenant_id),
            policy=vc.policy,
            policy_args=vc.policy_args,
            fault=vc.policy_fault,
            fault_at=vc.policy_fault_at,
            shadows=tuple(vc.shadows),
            totals=tuple(totals[vc.name]),
            version=vc.version,
            can_edit=can_edit,
        )
        for vc in rows
    )


def _totals(rows: QuerySet[ShadowDecision], since: datetime | None) -> tuple[ShadowTotal, ...]:
    """Return the totals by virtual cluster and shadow policy, the newest policy first."""
    if since is not None:
        rows = rows.filter(round__started_at__gte=since)
    agreeing = Q(only_shadow=0, only_live=0, leaving=0, fault="")
    summed = rows.order_by().values("virtual_cluster__name", "kind", "policy", "policy_args")
    totals: Iterable[Mapping[str, Any]] = summed.annotate(
        rounds=Count("id"),
        agreeing=Count("id", filter=agreeing),
        both=Sum("both"),
        only_shadow=Sum("only_shadow"),
        only_live=Sum("only_live"),
        leaving=Sum("leaving"),
        faults=Count("id", filter=~Q(fault="")),
        mean_ms=Avg("duration_ms"),
        max_ms=Max("duration_ms"),
        since=Min("round__started_at"),
        until=Max("round__started_at"),
        newest=Max("id"),
    ).order_by("-newest")
    return tuple(
        ShadowTotal(
            virtual_cluster=total["virtual_cluster__name"],
            **{name: total[name] for name in _SUMMED},
        )
        for total in totals
    )


def _of_viewer(viewer: Viewer) -> QuerySet[ShadowDecision]:
    visible = [
        pk
        for pk, tenant in VirtualCluster.objects.visible_to(viewer).values_list("id", "tenant_id")
        if viewer.can(Permission.VIEW_JOBS, tenant)
    ]
    return ShadowDecision.objects.filter(virtual_cluster__in=visible).select_related(
        "round", "virtual_cluster"
    )


def _row(row: ShadowDecision, answer: Mapping[str, Any] | None) -> ShadowRow:
    jobs = None
    if answer is not None:
        names = ("starts", "only_shadow", "only_live", "leaving", "sizes", "why")
        jobs = {name: answer[name] for name in names}
    return ShadowRow(
        number=row.round.number,
        at=row.round.started_at,
        virtual_cluster=row.virtual_cluster.name,
        policy=row.policy,
        policy_args=row.policy_args,
        duration_ms=row.duration_ms,
        fault=row.fault,
        starts=row.starts,
        both=row.both,
        only_shadow=row.only_shadow,
        only_live=row.only_live,
        leaving=row.leaving,
        agrees=not (row.only_shadow or row.only_live or row.leaving or row.fault),
        jobs=jobs,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseView:
    """The audits of one virtual cluster over several days; waits in seconds.

    Attributes:
        days: the audited days.
        sees_all: whether the viewer sees all jobs of the virtual cluster; else only their own, and
            no device-hours and returns.
        jobs: a row of the audit's document per job, the worst verdict and largest excess first.
    """

    vc_id: int
    virtual_cluster: str
    since: date
    until: date
    days: tuple[date, ...]
    sees_all: bool
    guaranteed_hours: float | None
    used_hours: float | None
    verdicts: Mapping[str, int]
    causes: Mapping[str, int]
    own_wait_s: Mapping[str, float | None]
    private_wait_s: Mapping[str, float | None]
    returned_devices: int | None
    return_s: Mapping[str, float | None] | None
    jobs: tuple[Mapping[str, Any], ...]


def promise_view(viewer: Viewer, vc_id: int, *, since: date, until: date) -> PromiseView:
    """Return the stored audits from ``since`` to ``until``, both included.

    Cluster admins and leads of the tenant see all jobs, other users their own, as in the usage.

    Raises:
        NotFoundError: the virtual cluster is unknown, or the viewer may not see it.
        ForbiddenError: the viewer may not see jobs of its tenant.
    """
    vc = virtual_cluster_for(viewer, vc_id)
    viewer.require(Permission.VIEW_JOBS, vc.tenant_id, what=sentence("the-promise"))
    sees_all = viewer.is_cluster_admin or viewer.role_in(vc.tenant_id) is Role.LEAD
    found = PromiseAudit.objects.filter(virtual_cluster=vc, day__gte=since, day__lte=until)
    audits = [(row.day, row.result) for row in found.order_by("day") if row.result]
    jobs = [job for _, result in audits for job in result["jobs"]]
    if not sees_all:
        own = Job.objects.unscoped().filter(virtual_cluster=vc, owner_id=viewer.user_id)
        mine = set(own.values_list("pk", flat=True))
        jobs = [job for job in jobs if job["job"] in mine]
    returns = [one for _, result in audits for one in result["returns"]]
    numbers = figures(jobs, returns)
    hours = {
        name: sum(result[f"{name}_device_hours"] for _, result in audits)
        for name in ("guaranteed", "used")
    }
    return PromiseView(
        vc_id=vc.pk,
        virtual_cluster=vc.name,
        since=since,
        until=until,
        days=tuple(day for day, _ in audits),
        sees_all=sees_all,
        guaranteed_hours=hours["guaranteed"] if sees_all else None,
        used_hours=hours["used"] if sees_all else None,
        verdicts=numbers["verdicts"],
        causes=numbers["causes"],
        own_wait_s=numbers["own_wait_s"],
        private_wait_s=numbers["private_wait_s"],
        returned_devices=numbers["returned_devices"] if sees_all else None,
        return_s=numbers["return_s"] if sees_all else None,
        jobs=tuple(sorted(jobs, key=_worst_first)),
    )


def _worst_first(job: Mapping[str, Any]) -> tuple[int, float, int]:
    worst = list(Verdict)[::-1]
    return worst.index(job["verdict"]), job["bound_s"] - job["own_wait_s"], job["job"]


def newest_advice(*, since: datetime, tenants: Iterable[int] | None = None) -> dict[int, WhatIf]:
    """Return the newest advice with a result by virtual cluster, on the actual cluster.

    Args:
        since: start of the period in which it was requested.
        tenants: only virtual clusters of these tenants; None for all.
    """
    rows = WhatIf.objects.unscoped().filter(
        kind=WhatIfKind.ADVICE, nodes={}, fault="", finished_at__isnull=False, asked_at__gte=since
    )
    if tenants is not None:
        rows = rows.filter(tenant__in=list(tenants))
    return {row.virtual_cluster_id: row for row in rows.order_by("id")}


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRegret:
    """The regret of the policy in force, from the newest advice.

    Attributes:
        policy: policy in force at the advice.
        best: policy with the lowest mean completion.
        seconds: mean completion of the policy in force above the best one's.
        share: the same, relative to the best one's.
        at: time of the advice.
        advice: its ID.
    """

    virtual_cluster: str
    policy: str
    best: str
    seconds: float
    share: float
    at: datetime
    advice: int


def regrets_of(viewer: Viewer, *, since: datetime) -> dict[int, PolicyRegret]:
    """Return the regrets by virtual cluster; only where the viewer may see jobs."""
    clusters = {
        vc.pk: vc
        for vc in VirtualCluster.objects.visible_to(viewer).filter(archived_at=None)
        if viewer.can(Permission.VIEW_JOBS, vc.tenant_id)
    }
    found = newest_advice(since=since, tenants={vc.tenant_id for vc in clusters.values()})
    return {
        vc_id: PolicyRegret(
            virtual_cluster=clusters[vc_id].name,
            policy=row.policy,
            best=row.result["regret"]["best"],
            seconds=row.result["regret"]["seconds"],
            share=row.result["regret"]["share"],
            at=row.finished_at,
            advice=row.pk,
        )
        for vc_id, row in found.items()
        if vc_id in clusters and row.finished_at is not None and row.result.get("regret")
    }


def visible_advice(viewer: Viewer, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return an advice without the virtual clusters whose jobs the viewer may not see.

    ``others`` has the sums of those; a cluster admin sees all.
    """
    if not result:
        return {}
    rows = result["changes"]["virtual_clusters"]
    shown = [row for row in rows if viewer.can(Permission.VIEW_JOBS, row["tenant"])]
    hidden = [row for row in rows if row not in shown]
    others = {key: sum(row[key] for row in hidden) for key in _VERDICTS}
    changes = {**result["changes"], "virtual_clusters": shown, "others": others}
    return {**result, "changes": changes}


_VERDICTS: Final = ("winner", "loser", "same", "unknown")
