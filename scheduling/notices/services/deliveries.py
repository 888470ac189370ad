"""Deliveries: claim by one worker at a time, retries, giving up, and replay."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import transaction
from django.db.models import F, Q

from scheduling.core.messages import sentence
from scheduling.core.notices import next_try
from scheduling.notices.models import Delivery, DeliveryState, Notice
from scheduling.notices.queries import deliveries_for
from scheduling.secrets import UnreadableSecretError, unseal
from tenants.audit import record
from tenants.errors import ConflictError, ForbiddenError, NotFoundError
from tenants.roles import Permission, scopes_allow
from tenants.services import prune_inbox
from tenants.viewers import Viewer

CLAIM: Final = timedelta(minutes=2)
KEPT_TRIES: Final = 20
LONGEST_ERROR: Final = 300
PRUNE_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """A delivery that a worker has claimed.

    Attributes:
        id: primary key of the delivery.
        uid: identifier shown to the receiver, the same for every try.
        url: URL of the webhook; empty for a mail.
        secret: signing secret of the webhook; empty for a mail.
        address: mail address of the person; empty for a webhook.
        language: language that the person has chosen for the portal.
        time_zone: time zone that the person has chosen for the portal.
    """

    id: int
    uid: str
    event: str
    body: Mapping[str, Any]
    hook_id: int | None = None
    url: str = ""
    secret: str = ""
    address: str = ""
    language: str = ""
    time_zone: str = ""

    def __repr__(self) -> str:
        """Return a text without secrets, which is safe for logs."""
        return f"Parcel({self.uid} {self.event})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a try.

    Attributes:
        status: the HTTP status; None without a response.
        error: the error; empty after a success.
        seconds: duration of the try.
        final: whether a retry is useless.
        is_of_one: whether the error concerns only this delivery, not others to the same receiver.
    """

    status: int | None = None
    error: str = ""
    seconds: float = 0.0
    final: bool = False
    is_of_one: bool = False

    @property
    def is_success(self) -> bool:
        """Return whether the receiver has accepted the delivery."""
        return not self.error


def due(
    *, now: datetime, limit: int, without_hooks: Collection[int] = (), without_mail: bool = False
) -> list[int]:
    """Return deliveries that are due, the longest waiting first.

    Args:
        now: the current time.
        limit: maximum number of deliveries.
        without_hooks: webhooks to exclude.
        without_mail: whether to exclude mails.
    """
    waiting = Delivery.objects.filter(state=DeliveryState.WAITING, next_at__lte=now)
    free = waiting.filter(Q(claimed_until=None) | Q(claimed_until__lte=now))
    if without_hooks:
        free = free.exclude(hook__in=list(without_hooks))
    if without_mail:
        free = free.filter(user=None)
    return list(free.order_by("next_at", "id").values_list("id", flat=True)[:limit])


def claim(*, delivery_id: int, now: datetime) -> Parcel | None:
    """Claim one delivery; return None if it is not due any more or already claimed.

    If the webhook is disabled, or the person was removed or has no address, the delivery is given
    up.
    """
    mine = Delivery.objects.filter(
        Q(claimed_until=None) | Q(claimed_until__lte=now),
        pk=delivery_id,
        state=DeliveryState.WAITING,
        next_at__lte=now,
    )
    if not mine.update(claimed_until=now + CLAIM):
        return None
    row = Delivery.objects.select_related("hook", "user").get(pk=delivery_id)
    if row.hook is not None:
        if row.hook.enabled:
            try:
                return _for_hook(row)
            except UnreadableSecretError:
                reason = (
                    "the webhook's secret cannot be decrypted with the key of this installation"
                )
        else:
            reason = sentence("undelivered-hook-disabled")
    elif row.user is not None and row.user.is_active and row.user.email:
        return _for_person(row)
    else:
        reason = sentence("undelivered-no-address")
    settle(delivery_id=row.pk, outcome=Outcome(error=reason, final=True), now=now)
    return None


def settle(*, delivery_id: int, outcome: Outcome, now: datetime) -> None:
    """Record the result of a try, and schedule the next try if one is left."""
    row = Delivery.objects.filter(pk=delivery_id, state=DeliveryState.WAITING).first()
    if row is None:
        return
    tries = row.tries + 1
    entry = {
        "at": now.isoformat(),
        "status": outcome.status,
        "error": outcome.error[:LONGEST_ERROR],
        "seconds": round(outcome.seconds, 3),
    }
    again = None if outcome.final or outcome.is_success else next_try(tries, now)
    state = DeliveryState.WAITING
    if outcome.is_success:
        state = DeliveryState.DELIVERED
    elif again is None:
        state = DeliveryState.DEAD
    Delivery.objects.filter(pk=row.pk, state=DeliveryState.WAITING).update(
        state=state,
        tries=F("tries") + 1,
        log=[*row.log, entry][-KEPT_TRIES:],
        next_at=again or row.next_at,
        claimed_until=None,
        done_at=None if state == DeliveryState.WAITING else now,
    )


@transaction.atomic
def replay(*, viewer: Viewer, delivery_id: int, now: datetime) -> Delivery:
    """Replay a delivery as a new one for the same event.

    Raises:
        NotFoundError: the viewer has no delivery with this ID.
        ConflictError: the delivery is still pending, or its webhook is disabled.
    """
    row = _own(viewer, delivery_id)
    if row.state == DeliveryState.WAITING:
        raise ConflictError(sentence("delivery-pending"), field="id", value=delivery_id)
    if row.hook is not None and not row.hook.enabled:
        remedy = sentence("enable-hook-first")
        raise ConflictError(sentence("hook-disabled"), field="hook", remedy=remedy)
    made = Delivery.objects.create(
        event_uid=row.event_uid,
        event=row.event,
        hook_id=row.hook_id,
        user_id=row.user_id,
        body=row.body,
        created_at=now,
        next_at=now,
        replay_of=row,
        is_replay=True,
    )
    record(
        actor=viewer,
        action="delivery.replay",
        obj=made,
        after={"replay_of": str(row.uid), "event": row.event},
        tenant=row.hook.tenant_id if row.hook else None,
    )
    return made


def prune(*, before: datetime) -> int:
    """Delete deliveries and messages from before ``before``; return the number of deliveries."""
    Notice.objects.unscoped().filter(untold=False, at__lt=before).delete()
    prune_inbox(before=before)
    gone = 0
    while True:
        old = Delivery.objects.exclude(state=DeliveryState.WAITING).filter(created_at__lt=before)
        ids = list(old.order_by("id").values_list("id", flat=True)[:PRUNE_AT_ONCE])
        Delivery.objects.filter(pk__in=ids).delete()
        gone += len(ids)
        if len(ids) < PRUNE_AT_ONCE:
            return gone


def _own(viewer: Viewer, delivery_id: int) -> Delivery:
    row = deliveries_for(viewer).filter(pk=delivery_id).first()
    if row is None:
        raise NotFoundError(sentence("no-such-delivery"), field="id", value=delivery_id)
    if row.hook is None and not scopes_allow(viewer.scopes, Permission.SUBMIT_JOBS):
        raise ForbiddenError(
            sentence("token-lacks-scope"),
            field="permission",
            value=str(Permission.SUBMIT_JOBS),
            remedy=sentence("use-token-with-scope"),
        )
    return row


def _for_hook(row: Delivery) -> Parcel:
    assert row.hook is not None  # noqa: S101 narrows the type only
    return Parcel(
        id=row.pk,
        uid=str(row.uid),
        event=row.event,
        body=row.body,
        hook_id=row.hook_id,
        url=row.hook.url,
        secret=unseal(bytes(row.hook.sealed_secret)),
    )


def _for_person(row: Delivery) -> Parcel:
    assert row.user is not None  # noqa: S101 narrows the type only
    return Parcel(
        id=row.pk,
        uid=str(row.uid),
        event=row.event,
        body=row.body,
        address=row.user.email,
        language=row.user.language,
        time_zone=row.user.time_zone,
    )
