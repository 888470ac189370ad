"""Idempotency keys of submits: the hash of the request, and the job of a used key."""

from dataclasses import dataclass
from typing import Final

from scheduling.common.canonical_json import canonical_json
from scheduling.core.messages import sentence
from scheduling.jobs.models import Job
from scheduling.jobs.validation import InvalidJobError
from scheduling.secrets import fingerprint
from tenants.errors import ConflictError, DomainError
from tenants.viewers import Viewer

MAX_IDEMPOTENCY_KEY: Final = 128
NEW_KEY: Final = sentence("use-new-key")


class IdempotencyConflictError(ConflictError):
    """The key was used before for another request."""

    code = "idempotency-conflict"


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """An idempotency key with the hash of its request.

    Attributes:
        word: the key, or empty.
        digest: keyed hash of the request, since the request may contain secrets.
    """

    word: str = ""
    digest: str = ""

    def is_for(self, job: Job, *, otherwise: bool) -> bool:
        """Return whether ``job`` was submitted with the same request.

        Args:
            job: a job with this key.
            otherwise: the result for a job without a stored hash.
        """
        known = job.idempotency_digest
        return known == self.digest if known else otherwise


NO_KEY: Final = Key()


def read_key(word: str, sent: object, *, refusal: type[DomainError] = InvalidJobError) -> Key:
    """Return the key of a request, with the hash of its content.

    Args:
        word: the key, or empty.
        sent: the content.
        refusal: class of the error for a key that is too long or has control characters.
    """
    if len(word) > MAX_IDEMPOTENCY_KEY or not word.isprintable():
        raise refusal(
            sentence("not-idempotency-key", most=MAX_IDEMPOTENCY_KEY),
            field="Idempotency-Key",
            remedy=sentence("use-uuid"),
        )
    return Key(word=word, digest=fingerprint(_spelled(sent))) if word else NO_KEY


def jobs_of_key(viewer: Viewer, key: Key) -> list[Job]:
    """Return the viewer's jobs with a key, regardless of tenant rights; empty without a key."""
    if not key.word:
        return []
    return list(Job.objects.unscoped().filter(owner_id=viewer.user_id, idempotency_key=key.word))


def refuse_used_key(viewer: Viewer, key: Key) -> None:
    """Reject a key of another request, or of a job that this token may not see.

    Raises:
        IdempotencyConflictError: a job of the viewer has the key.
    """
    if jobs_of_key(viewer, key):
        raise used_key(
            key,
            sentence("key-used-elsewhere"),
        )


def used_key(key: Key, message: str, remedy: str = NEW_KEY) -> IdempotencyConflictError:
    """Return the error for a used key."""
    return IdempotencyConflictError(
        message, field="Idempotency-Key", value=key.word, remedy=remedy
    )


def _spelled(sent: object) -> bytes:
    """Return the canonical JSON of a document, or its ``repr`` if it is not valid JSON."""
    try:
        return canonical_json(sent)
    except (TypeError, ValueError, RecursionError):
        return repr(sent).encode("utf-8", "backslashreplace")
