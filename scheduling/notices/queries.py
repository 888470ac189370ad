"""Webhooks, deliveries and mail preferences for pages and REST, without secrets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Count, Q, QuerySet

from scheduling.core.messages import sentence
from scheduling.core.notices import DEFAULT_MAIL, JOB_EVENTS
from scheduling.notices.models import (
    Delivery,
    DeliveryState,
    GpuHourBudget,
    NotificationPreference,
    Webhook,
)
from scheduling.rounds.models import Round
from tenants.errors import NotFoundError
from tenants.roles import Permission, scopes_allow
from tenants.viewers import Viewer


@dataclass(frozen=True, slots=True, kw_only=True)
class HookRow:
    """A webhook without its secret.

    Attributes:
        tenant: name of the tenant; None for the whole cluster.
        waiting: number of pending deliveries.
        dead: number of deliveries that were given up.
    """

    id: int
    name: str
    tenant: str | None
    tenant_id: int | None
    url: str
    events: tuple[str, ...]
    enabled: bool
    created_at: datetime
    version: int
    waiting: int
    dead: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryRow:
    """A delivery with its tries.

    Attributes:
        to: name of the webhook; empty for a mail to the viewer.
        tries: the tries, each with ``at``, ``status``, ``error`` and ``seconds``.
        replay_of: uid of the delivery that it repeats.
    """

    id: int
    uid: str
    event: str
    event_uid: str
    hook_id: int | None
    to: str
    state: str
    body: Mapping[str, Any]
    count: int
    tries: tuple[Mapping[str, Any], ...]
    created_at: datetime
    next_at: datetime
    done_at: datetime | None
    replay_of: str | None

    @property
    def last(self) -> Mapping[str, Any] | None:
        """Return the newest try, or None before the first."""
        return self.tries[-1] if self.tries else None


def hooks_for(viewer: Viewer) -> list[HookRow]:
    """Return the webhooks that the viewer may manage, in two queries."""
    hooks = list(Webhook.objects.visible_to(viewer).order_by("id"))
    if not viewer.can(Permission.MANAGE_HOOKS):
        hooks = [hook for hook in hooks if hook.tenant_id is not None]
    counts = _counts([hook.pk for hook in hooks])
    return [
        HookRow(
            id=hook.pk,
            name=hook.name,
            tenant=None if hook.tenant_id is None else viewer.name_of(hook.tenant_id),
            tenant_id=hook.tenant_id,
            url=hook.url,
            events=tuple(hook.events),
            enabled=hook.enabled,
            created_at=hook.created_at,
            version=hook.version,
            waiting=counts.get(hook.pk, (0, 0))[0],
            dead=counts.get(hook.pk, (0, 0))[1],
        )
        for hook in hooks
    ]


def hook_for(viewer: Viewer, hook_id: int) -> HookRow:
    """Return a webhook that the viewer may manage.

    Raises:
        NotFoundError: the viewer may manage no webhook with this ID.
    """
    for row in hooks_for(viewer):
        if row.id == hook_id:
            return row
    raise NotFoundError(sentence("no-such-hook"), field="id", value=hook_id)


def deliveries_for(
    viewer: Viewer, *, hook_id: int | None = None, state: str = "", before: int | None = None
) -> "QuerySet[Delivery]":
    """Return deliveries to the viewer's webhooks and to the viewer, newest first.

    A token without a scope for jobs gets neither mails nor events of jobs. A token that is bound
    to a tenant gets only mails about this tenant.

    Args:
        viewer: the reader.
        hook_id: limits the result to one webhook.
        state: limits the result to one state.
        before: limits the result to smaller primary keys, for paging.
    """
    managed = viewer.tenant_ids(Permission.MANAGE_HOOKS)
    mine = _own_mails(viewer)
    of_hooks = Q(hook__isnull=False) if managed is None else Q(hook__tenant__in=managed)
    if not scopes_allow(viewer.scopes, Permission.VIEW_JOBS):
        of_hooks &= ~Q(event__in=[event.value for event in JOB_EVENTS])
    mine |= of_hooks
    rows = Delivery.objects.filter(mine).select_related("hook", "replay_of").order_by("-id")
    if hook_id is not None:
        rows = rows.filter(hook=hook_id)
    if state:
        rows = rows.filter(state=state)
    return rows if before is None else rows.filter(pk__lt=before)


def _own_mails(viewer: Viewer) -> Q:
    if not scopes_allow(viewer.scopes, Permission.VIEW_JOBS):
        return Q(pk__in=())
    mails = Q(user__isnull=False, user=viewer.user_id)
    if viewer.bound_tenant_id is None:
        return mails
    return mails & Q(body__tenant=viewer.name_of(viewer.bound_tenant_id))


def delivery_row(row: Delivery) -> DeliveryRow:
    return DeliveryRow(
        id=row.pk,
        uid=str(row.uid),
        event=row.event,
        event_uid=str(row.event_uid),
        hook_id=row.hook_id,
        to=row.hook.name if row.hook else "",
        state=row.state,
        body=row.body,
        count=row.tries,
        tries=tuple(row.log),
        created_at=row.created_at,
        next_at=row.next_at,
        done_at=row.done_at,
        replay_of=str(row.replay_of.uid) if row.replay_of else None,
    )


def mail_events_of(viewer: Viewer) -> tuple[str, ...]:
    row = NotificationPreference.objects.filter(user=viewer.user_id or 0).first()
    return tuple(DEFAULT_MAIL) if row is None else tuple(row.mail)


def budget_of(viewer: Viewer, tenant_id: int) -> float | None:
    """Return the monthly budget of a tenant in GPU-hours, or None without a budget."""
    viewer.require(Permission.VIEW_TENANT, tenant_id, what="the tenant")
    return (
        GpuHourBudget.objects.unscoped()
        .filter(tenant=tenant_id)
        .values_list("hours", flat=True)
        .first()
    )


def delivery_counts() -> Mapping[str, int]:
    """Return the number of pending and given-up deliveries by state, for cluster admins."""
    rows = Delivery.objects.exclude(state=DeliveryState.DELIVERED).order_by()
    found = dict(rows.values_list("state").annotate(number=Count("id")))
    return {state: found.get(state, 0) for state in (DeliveryState.WAITING, DeliveryState.DEAD)}


def _counts(hook_ids: Sequence[int]) -> Mapping[int, tuple[int, int]]:
    rows = Delivery.objects.filter(hook__in=hook_ids).order_by().values_list("hook_id")
    counted = rows.annotate(
        waiting=Count("id", filter=Q(state=DeliveryState.WAITING)),
        dead=Count("id", filter=Q(state=DeliveryState.DEAD)),
    )
    return {hook_id: (waiting, dead) for hook_id, waiting, dead in counted if hook_id}


def round_beat(number: int) -> dict[str, Any] | None:
    """Return the numbers of a round for the round ticker, without names; None if it is unknown."""
    found = (
        Round.objects.filter(number=number)
        .values("number", "duration_ms", "committed_at", "policies", "queued", "running")
        .first()
    )
    return {**found, "committed_at": found["committed_at"].isoformat()} if found else None


def budgets_for(viewer: Viewer) -> Mapping[int, float]:
    """Return the monthly budgets in GPU-hours by tenant ID, of tenants that the viewer may see."""
    rows = GpuHourBudget.objects.visible_to(viewer, Permission.VIEW_TENANT)
    return dict(rows.values_list("tenant_id", "hours"))
