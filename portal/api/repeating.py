"""Idempotent creation of objects other than jobs: one object per ``Idempotency-Key``."""

from collections.abc import Callable
from typing import TypeVar

from rest_framework.request import Request

from scheduling.jobs.services.idempotency import read_key, used_key
from scheduling.secrets import fingerprint
from tenants.clock import database_now
from tenants.errors import ConflictError, FieldError, InvalidError
from tenants.services import FormSentError, act_once
from tenants.viewers import Viewer

T = TypeVar("T")


class ToldOnceError(ConflictError):
    """The key has created an object whose secret was only in the first response."""

    code = "told-once"
    title = "The secret stood in the first answer"

    @classmethod
    def of(cls, kind: str, made: int | None, remedy: str) -> "ToldOnceError":
        """Build the error for a repetition.

        Args:
            kind: the kind of object.
            made: its id.
            remedy: how to get another secret.
        """
        message = f"The key has made {kind} {made}, whose secret stood in that answer alone."
        return cls(errors=(FieldError(field="id", value=made, message=message, remedy=remedy),))


class WithdrawnError(ConflictError):
    """The object that the key created no longer exists."""

    code = "withdrawn"
    title = "What the key has made is no longer there"

    @classmethod
    def of(cls, kind: str, made: int) -> "WithdrawnError":
        """The answer to a repetition; see ``ToldOnceError.of``."""
        message = f"The key has made {kind} {made}, which was withdrawn since."
        remedy = "Use a new key to make another one."
        return cls(errors=(FieldError(field="id", value=made, message=message, remedy=remedy),))


def make_with_key(
    request: Request, act: Callable[[], T], *, viewer: Viewer, made_key: Callable[[T], int]
) -> T:
    """Create the requested object unless its ``Idempotency-Key`` has done so.

    A key is stored for a day, for one body at one address.

    Args:
        request: with its key, if it has one.
        act: creates it; see ``tenants.services.act_once``.
        viewer: the caller.
        made_key: the primary key of the object.

    Raises:
        FormSentError: it exists, with the key in ``made``.
        IdempotencyConflictError: the key was used for another request.
        InvalidError: the key is not valid.
    """
    sent = {"address": request.path, "body": request.data}
    key = read_key(request.headers.get("Idempotency-Key", ""), sent, refusal=InvalidError)
    try:
        return act_once(
            act,
            viewer=viewer,
            word=fingerprint(key.word.encode())[:32] if key.word else "",
            digest=key.digest,
            made_key=made_key,
            now=database_now(),
        )
    except FormSentError as earlier:
        if earlier.is_same:
            raise
        remedy = "Use a new key for something new."
        raise used_key(key, "The key was used for something else.", remedy) from None
