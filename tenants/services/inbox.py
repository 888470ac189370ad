"""The read state of a person's messages and failures, and snoozed problems."""

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Final

from tenants.errors import ForbiddenError, InvalidError
from tenants.messages import sentence
from tenants.models import InboxMessage, Snooze, User
from tenants.selectors import inbox_for
from tenants.viewers import Viewer

MOST_MARKED: Final = 200
SNOOZES: Final = {"4h": timedelta(hours=4), "1d": timedelta(days=1)}
LONGEST_KEY: Final = 80


def mark_messages(
    *, viewer: Viewer, ids: Collection[int] | None, read: bool, now: datetime
) -> int:
    """Mark messages of the viewer as read or unread, and return the number of changed ones.

    Args:
        viewer: the reader; other people's messages are left alone.
        ids: keys of messages, at most ``MOST_MARKED``; None for all.
        read: False marks them as unread.
        now: time of the reading.
    """
    mine = inbox_for(viewer).filter(read_at__isnull=read)
    if ids is not None:
        mine = mine.filter(pk__in=list(ids)[:MOST_MARKED])
    keys = list(mine.order_by().values_list("pk", flat=True))
    rows = InboxMessage.objects.unscoped().filter(pk__in=keys)
    return rows.update(read_at=now if read else None) if keys else 0


def mark_failures_seen(*, viewer: Viewer, now: datetime) -> None:
    """Record that the viewer has seen all failures of their jobs up to ``now``."""
    User.objects.filter(pk=_person(viewer)).update(failures_seen_at=now)


def snooze(*, viewer: Viewer, key: str, span: str, now: datetime) -> None:
    """Hide a problem from the viewer for a span of ``SNOOZES``; an empty span shows it again.

    Raises:
        InvalidError: unknown span, or a key that is too long.
    """
    user_id = _person(viewer)
    if (span and span not in SNOOZES) or not 0 < len(key) <= LONGEST_KEY:
        raise InvalidError(
            sentence("no-such-name", kind="span"),
            field="span",
            value=span,
            remedy=sentence("roles-to-use", names=", ".join(SNOOZES)),
        )
    Snooze.objects.filter(user=user_id, until__lte=now).delete()
    if not span:
        Snooze.objects.filter(user=user_id, key=key).delete()
        return
    Snooze.objects.update_or_create(
        user_id=user_id, key=key, defaults={"until": now + SNOOZES[span]}
    )


def prune_inbox(*, before: datetime, at_once: int = 500) -> int:
    """Delete messages from before a time, in short transactions; return their number."""
    gone = 0
    while True:
        old = InboxMessage.objects.unscoped().filter(at__lt=before).order_by("pk")
        ids = list(old.values_list("pk", flat=True)[:at_once])
        InboxMessage.objects.unscoped().filter(pk__in=ids).delete()
        gone += len(ids)
        if len(ids) < at_once:
            return gone


def _person(viewer: Viewer) -> int:
    if viewer.user_id is None:
        raise ForbiddenError(sentence("ask-cluster-admin"), field="user")
    return viewer.user_id
