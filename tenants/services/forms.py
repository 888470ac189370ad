"""Forms that make something each time they are sent: what the first sending makes is all."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final, TypeVar

from django.db import IntegrityError, transaction

from tenants.errors import ConflictError, FieldError
from tenants.messages import sentence
from tenants.models import FormToken
from tenants.viewers import Viewer

T = TypeVar("T")
KEPT: Final = timedelta(days=1)
"""Clicks come within seconds; a page that somebody goes back to, within a day's work."""


class FormSentError(ConflictError):
    """The form has done its work before; nothing was done now.

    Attributes:
        made: key of the row that was made then.
        is_same: the same was sent as then.
    """

    code = "form-sent"
    title = sentence("form-sent")

    def __init__(
        self,
        message: str = "",
        *,
        made: int | None = None,
        is_same: bool = False,
        errors: tuple[FieldError, ...] = (),
    ) -> None:
        """Say what helps: a form that was shown anew has a word that was not used."""
        remedy = "" if is_same else sentence("send-form-again")
        super().__init__(message or _WORDS[is_same], remedy=remedy, errors=errors)
        self.made = made
        self.is_same = is_same


_WORDS: Final = {
    True: sentence("form-done"),
    False: sentence("form-differs"),
}


def act_once(
    act: Callable[[], T],
    *,
    viewer: Viewer,
    word: str,
    digest: str,
    made_key: Callable[[T], int],
    now: datetime,
) -> T:
    """Do what a form asks for, unless the viewer has sent this form before.

    Args:
        act: makes it, by rows of the database alone; what it raises lets the form be sent again.
        viewer: who sends the form.
        word: the form's own, at most 32 characters; empty: as often as it is sent.
        digest: of what was sent with it, at most 64 characters.
        made_key: the key of what was made.
        now: the time.

    Raises:
        FormSentError: it was sent before, also where both come at once.
    """
    if not word or viewer.user_id is None:
        return act()
    try:
        with transaction.atomic():
            # Whoever comes second waits here for the first one's end, before it makes a thing.
            used = FormToken.objects.create(
                user_id=viewer.user_id, word=word, digest=digest, at=now
            )
            made = act()
            FormToken.objects.filter(pk=used.pk).update(made=made_key(made))
    except IntegrityError:
        earlier = FormToken.objects.filter(user_id=viewer.user_id, word=word).first()
        if earlier is None:
            raise
        raise FormSentError(made=earlier.made, is_same=earlier.digest == digest) from None
    return made


def forget_forms(*, now: datetime) -> int:
    """Forget forms that were sent long ago; returns how many."""
    gone, _ = FormToken.objects.filter(at__lt=now - KEPT).delete()
    return gone
