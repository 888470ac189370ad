"""Requests that make something other than jobs: with one ``Idempotency-Key`` they make it once."""

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
    """The key has made something before, whose secret stood in the answer of that time alone."""

    code = "told-once"
    title = "The secret stood in the first answer"

    @classmethod
    def of(cls, kind: str, made: int | None, remedy: str) -> "ToldOnceError":
        """The answer to a repetition.

        Args:
            kind: the word for what was made.
            made: its id.
            remedy: how to come by another secret.
        """
        message = f"The key has made {kind} {made}, whose secret stood in that answer alone."
        return cls(errors=(FieldError(field="id", value=made, message=message, remedy=remedy),))


class WithdrawnError(ConflictError):
    """The key has made something before that is no longer there."""

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
    """Make what a request asks for, unless its ``Idempotency-Key`` has made it before.

    A key is kept for a day, and stands for one body at one address.

    Args:
        request: with its key, if it has one.
        act: makes it; see ``tenants.services.act_once``.
        viewer: who asks.
        made_key: the key of what was made.

    Raises:
        FormSentError: it has been made, under the key in ``made``.
        IdempotencyConflictError: the key was used for something else.
        InvalidError: it is no key.
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
