"""Idempotent forms: only the first POST of a form creates an object."""

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
"""Retention of form tokens, which covers repeated clicks and revisited pages."""


class FormSentError(ConflictError):
    """The form was processed before; this request had no effect.

    Attributes:
        made: primary key of the created row.
        is_same: the input is the same as then.
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
        """Build the error with its remedy: a newly rendered form has an unused token."""
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
    """Process a form, unless the viewer has sent it before.

    Args:
        act: creates the object, using only the database; after an error, the form can be sent
            again.
        viewer: sender of the form.
        word: token of the form, at most 32 characters; no check if empty.
        digest: hash of its input, at most 64 characters.
        made_key: the primary key of the object.
        now: current time.

    Raises:
        FormSentError: the form was sent before, or concurrently.
    """
    if not word or viewer.user_id is None:
        return act()
    try:
        with transaction.atomic():
            # The second sender waits here for the end of the first, before it creates an object.
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


def prune_forms(*, now: datetime) -> int:
    """Delete forms that were sent long ago; return their number."""
    gone, _ = FormToken.objects.filter(at__lt=now - KEPT).delete()
    return gone
