"""Mail preferences of a person."""

from collections.abc import Sequence

from django.db import transaction

from scheduling.core.messages import sentence
from scheduling.core.notices import CHOSEN_EVENTS
from scheduling.notices.models import NotificationPreference
from tenants.audit import record
from tenants.errors import FieldError, ForbiddenError, InvalidError
from tenants.viewers import Viewer


@transaction.atomic
def set_mail_events(*, viewer: Viewer, events: Sequence[str]) -> tuple[str, ...]:
    """Set the events that the viewer gets by mail; an empty set is valid.

    Raises:
        ForbiddenError: the viewer is not a person.
        InvalidError: an event is unknown.
    """
    if viewer.user_id is None:
        raise ForbiddenError(sentence("only-users-get-mail"), remedy=sentence("sign-in-as-user"))
    InvalidError.raise_if(
        FieldError(
            field="mail",
            value=event,
            message=sentence("no-such-event"),
            remedy=sentence("give-some-of", names=", ".join(CHOSEN_EVENTS)),
        )
        for event in events
        if event not in CHOSEN_EVENTS
    )
    chosen = tuple(sorted(set(events)))
    row = NotificationPreference.objects.filter(user=viewer.user_id).first()
    before = {} if row is None else {"mail": row.mail}
    row, _ = NotificationPreference.objects.update_or_create(
        user_id=viewer.user_id, defaults={"mail": list(chosen)}
    )
    if before != {"mail": list(chosen)}:
        record(
            actor=viewer,
            action="notifications.update",
            obj=row,
            object_name=viewer.username,
            before=before,
            after={"mail": list(chosen)},
        )
    return chosen
