"""The outbox: creates deliveries of events for the webhooks and people that subscribe to them."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.db import transaction
from django.db.models import Q

from scheduling.core.notices import (
    BODY_VERSION,
    CLUSTER_EVENTS,
    DEFAULT_MAIL,
    EVENT_KINDS,
    EVENT_STATES,
    INBOX_EVENTS,
    QUIET_EVENTS,
    NoticeEvent,
    event_of,
    event_words,
    uid_of,
)
from scheduling.jobs.models import JobEvent
from scheduling.notices.models import Delivery, Notice, NotificationPreference, Webhook
from tenants.models import InboxMessage, Membership, Tenant, User
from tenants.roles import Role

AT_ONCE: Final = 200
TOLD_FACTS: Final = ("failure_class", "exit_code", "idle_seconds", "stop_at", "below")
"""Details of events that leave the installation; free texts could quote unreviewed content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """An event with its receivers.

    Attributes:
        uid: identifier of the event.
        tenant_id: the tenant whose webhooks get the event; None for webhooks of the cluster only.
        readers: people who get a mail if their preferences include the event.
        certain: people who get a mail regardless of their preferences.
        concerned: people who get a message in their inbox, if the event is one for it.
        at: time of the event.
    """

    uid: UUID
    event: NoticeEvent
    tenant_id: int | None
    body: Mapping[str, Any]
    readers: Collection[int] = ()
    certain: Collection[int] = ()
    concerned: Collection[int] = ()
    at: datetime


def put(
    *, event: NoticeEvent, facts: Mapping[str, Any], now: datetime, tenant_id: int | None = None
) -> None:
    """Record an event of a node, a host or a quota, in the caller's transaction.

    Args:
        event: kind of the event.
        facts: part of the body: ``node``, ``host`` or ``quota``.
        now: time of the event.
        tenant_id: the tenant concerned; None for the cluster.
    """
    Notice.objects.create(event=event, at=now, tenant_id=tenant_id, facts=dict(facts))


@transaction.atomic
def create_deliveries(*, now: datetime, sends_mail: bool, base_url: str = "") -> int:
    """Create deliveries of pending events, oldest first, for at most ``AT_ONCE`` events of a kind.

    Concurrent calls create each delivery once.

    Args:
        now: the current time.
        sends_mail: whether the installation can send mail.
        base_url: URL of the portal, for links.

    Returns:
        The number of processed events.
    """
    # Events of the next release stay for its processes.
    is_known = Q(kind__in=EVENT_KINDS) | Q(state__in=EVENT_STATES)
    events = list(
        JobEvent.objects.filter(is_known, untold=True)
        .select_related("job__tenant", "job__virtual_cluster", "job__owner")
        .order_by("id")[:AT_ONCE]
    )
    pending = Notice.objects.unscoped().filter(untold=True, event__in=list(NoticeEvent))
    notices = list(pending.order_by("id")[:AT_ONCE])
    if not events and not notices:
        return 0
    told = [*_of_jobs(events, base_url), *_of_notices(notices, base_url)]
    Delivery.objects.bulk_create(
        _deliveries(told, now, sends_mail=sends_mail), ignore_conflicts=True
    )
    InboxMessage.objects.bulk_create(_messages(told), ignore_conflicts=True)
    JobEvent.objects.filter(pk__in=[event.pk for event in events]).update(untold=False)
    Notice.objects.unscoped().filter(pk__in=[notice.pk for notice in notices]).update(untold=False)
    return len(events) + len(notices)


def _deliveries(told: Sequence[_Told], now: datetime, *, sends_mail: bool) -> Iterator[Delivery]:
    hooks = list(Webhook.objects.unscoped().filter(enabled=True))
    wishes = _wishes({reader for one in told for reader in one.readers}) if sends_mail else {}
    for one in told:
        for hook in hooks:
            if one.event in hook.events and hook.tenant_id in (None, one.tenant_id):
                yield _delivery(one, now, hook=hook)
        if not sends_mail:
            continue
        mailed = {reader for reader in one.readers if one.event in wishes[reader]}
        for user_id in sorted(mailed | set(one.certain)):
            yield _delivery(one, now, user_id=user_id)


def _messages(told: Sequence[_Told]) -> Iterator[InboxMessage]:
    for one in told:
        if one.event not in INBOX_EVENTS:
            continue
        body = {name: value for name, value in one.body.items() if name != "url"}
        body["words"] = event_words(one.event)  # for a reader of the previous release
        for user_id in sorted(set(one.concerned)):
            yield InboxMessage(
                user_id=user_id,
                tenant_id=one.tenant_id,
                event_uid=one.uid,
                event=one.event,
                job=body.get("job", {}).get("id"),
                body=body,
                at=one.at,
                read_at=one.at if one.event in QUIET_EVENTS else None,
            )


def _delivery(
    one: _Told, now: datetime, *, hook: Webhook | None = None, user_id: int | None = None
) -> Delivery:
    return Delivery(
        event_uid=one.uid,
        event=one.event,
        hook=hook,
        user_id=user_id,
        body=dict(one.body),
        created_at=now,
        next_at=now,
    )


def _wishes(user_ids: Collection[int]) -> Mapping[int, Collection[str]]:
    """Return the mail preferences of these people by user ID."""
    chosen = NotificationPreference.objects.filter(user__in=list(user_ids))
    usual: Collection[str] = frozenset(DEFAULT_MAIL)
    wishes = dict.fromkeys(user_ids, usual)
    wishes |= {user_id: frozenset(mail) for user_id, mail in chosen.values_list("user", "mail")}
    return wishes


def _of_jobs(events: Sequence[JobEvent], base_url: str) -> Iterator[_Told]:
    people = _People.of_jobs(events)
    for row in events:
        event = event_of(row.kind, row.state)
        if event is None:
            continue
        job = row.job
        uid = uid_of("job-event", row.pk)
        notify = job.spec.get("notify")
        asked = people.named(job.tenant_id, (notify or {}).get("to", ()))
        wants = notify is not None and event.removeprefix("job.") in notify.get("on", ())
        owner = [job.owner_id] if people.may_see(job.owner_id, job.tenant_id) else []
        yield _Told(
            uid=uid,
            event=event,
            tenant_id=job.tenant_id,
            body=_body(
                uid,
                event,
                row.at,
                tenant=job.tenant.name,
                url=f"{base_url}/jobs/{job.pk}/" if base_url else "",
                job=_job_facts(row),
            ),
            # The notify settings of a job replace the preferences of its owner.
            readers=owner if notify is None else (),
            certain=[*owner, *asked] if wants else (),
            concerned=owner,
            at=row.at,
        )


def _job_facts(row: JobEvent) -> dict[str, Any]:
    job = row.job
    detail = row.detail
    facts = {
        "id": job.pk,
        "name": job.name,
        "state": row.state or job.state,
        "virtual_cluster": job.virtual_cluster.name,
        "owner": job.owner.username,
        "attempt": row.attempt,
        "devices": job.devices,
    }
    return facts | {name: detail[name] for name in TOLD_FACTS if name in detail}


def _of_notices(notices: Sequence[Notice], base_url: str) -> Iterator[_Told]:
    if not notices:
        return
    leads = _leads({notice.tenant_id for notice in notices if notice.tenant_id})
    admins = list(_admins()) if any(n.event in CLUSTER_EVENTS for n in notices) else []
    names = dict(
        Tenant.objects.unscoped()
        .filter(pk__in=[n.tenant_id for n in notices if n.tenant_id])
        .values_list("pk", "name")
    )
    for notice in notices:
        event = NoticeEvent(notice.event)
        uid = uid_of("notice", notice.pk)
        readers = admins if event in CLUSTER_EVENTS else leads.get(notice.tenant_id or 0, ())
        path = notice.facts.get("path", "")
        facts = {name: value for name, value in notice.facts.items() if name != "path"}
        yield _Told(
            uid=uid,
            event=event,
            tenant_id=notice.tenant_id,
            body=_body(
                uid,
                event,
                notice.at,
                tenant=names.get(notice.tenant_id or 0, ""),
                url=f"{base_url}{path}" if base_url and path else "",
                **facts,
            ),
            readers=readers,
            concerned=readers,
            at=notice.at,
        )


def _body(
    uid: UUID, event: NoticeEvent, at: datetime, *, tenant: str, url: str, **parts: Any
) -> dict[str, Any]:
    body = {"version": BODY_VERSION, "id": str(uid), "event": event.value, "at": at.isoformat()}
    more = {"tenant": tenant, "url": url}
    return body | {name: value for name, value in more.items() if value} | parts


@dataclass(frozen=True, slots=True)
class _People:
    """Active people among the readers of some events, and their tenants."""

    admins: frozenset[int]
    members: Mapping[int, Mapping[str, int]]

    @classmethod
    def of_jobs(cls, events: Iterable[JobEvent]) -> "_People":
        """Read the admins and the members of the jobs' tenants, in two queries."""
        tenants = {event.job.tenant_id for event in events}
        members: dict[int, dict[str, int]] = defaultdict(dict)
        rows = Membership.objects.unscoped().filter(tenant__in=tenants, user__is_active=True)
        for tenant_id, name, user_id in rows.values_list("tenant_id", "user__username", "user_id"):
            members[tenant_id][name] = user_id
        return cls(frozenset(_admins()) if tenants else frozenset(), members)

    def may_see(self, user_id: int, tenant_id: int) -> bool:
        """Return whether a person may currently see jobs of the tenant."""
        return user_id in self.admins or user_id in self.members.get(tenant_id, {}).values()

    def named(self, tenant_id: int, names: Iterable[str]) -> list[int]:
        """Return the user IDs of those named people who are currently members of the tenant."""
        there = self.members.get(tenant_id, {})
        return [there[name] for name in names if name in there]


def _admins() -> Iterable[int]:
    return User.objects.filter(is_active=True, is_superuser=True).values_list("pk", flat=True)


def _leads(tenant_ids: Collection[int]) -> Mapping[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    rows = Membership.objects.unscoped().filter(
        tenant__in=list(tenant_ids), role=Role.LEAD, user__is_active=True
    )
    for tenant_id, user_id in rows.values_list("tenant_id", "user_id"):
        found[tenant_id].append(user_id)
    return found


def put_node_state(*, node_id: int, name: str, state: str, now: datetime) -> None:
    """Record a node's new state, in the caller's transaction."""
    put(
        event=NoticeEvent(f"node.{state}"),
        facts={
            "node": {"id": node_id, "name": name, "state": state},
            "path": f"/nodes/{node_id}/",
        },
        now=now,
    )


def put_node_disk(*, node_id: int, name: str, facts: Mapping[str, int], now: datetime) -> None:
    """Record that a node's disk is almost full, in the caller's transaction.

    Args:
        node_id: ID of the node.
        name: name of the node.
        facts: ``disk_free_bytes`` and ``disk_total_bytes``.
        now: time of the event.
    """
    node = {"id": node_id, "name": name, **facts}
    put(event=NoticeEvent.NODE_DISK, facts={"node": node, "path": f"/nodes/{node_id}/"}, now=now)


def put_host_disk(*, name: str, facts: Mapping[str, int], now: datetime) -> None:
    """Record that the data directory of a host is almost full, as ``put_node_disk`` does."""
    put(event=NoticeEvent.HOST_DISK, facts={"host": {"name": name, **facts}}, now=now)
