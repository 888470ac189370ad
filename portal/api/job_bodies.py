"""Parsing of job documents in requests (native or OpenPAI, one or many) to submissions."""

from collections.abc import Mapping
from typing import Any, Final

from django.conf import settings
from rest_framework.request import Request

from portal.api.imported import submission_of_import
from scheduling.compat.openpai.job import is_openpai, translate_openpai
from scheduling.jobs.queries.submit_context import SubmitContext, read_submit_context
from scheduling.jobs.services.submission import MAX_BULK, Submission
from scheduling.jobs.validation import InvalidJobError
from scheduling.rounds.snapshot import RoundConfig
from tenants.errors import FieldError, InvalidError
from tenants.viewers import Viewer

NATIVE: Final = "native"


def ground_for(viewer: Viewer) -> SubmitContext:
    """Return the submit context of the viewer."""
    return read_submit_context(
        viewer=viewer,
        images_ignored=settings.TESSERA.images == "ignore",
        host_network=settings.TESSERA.host_network == "gangs",
    )


def round_config() -> RoundConfig:
    """The settings of rounds, as the scheduler uses them."""
    return RoundConfig(
        round_seconds=settings.TESSERA.round_seconds,
        images_required=settings.TESSERA.images == "required",
        using=settings.SNAPSHOT_DATABASE,
    )


def submission_from(request: Request) -> Submission:
    """Parse the job in the body.

    Raises:
        InvalidJobError: the body is not an object.
        ImportRefusedError: an OpenPAI job that cannot be translated.
    """
    return submission_of(request.data, getattr(request, "_tessera_text", ""))


def submissions_from(request: Request) -> list[Submission]:
    """Return the jobs in the body: a list, or an object with the list ``jobs``.

    Raises:
        InvalidError: neither of them.
    """
    body = request.data
    if isinstance(body, Mapping) and list(body) == ["jobs"]:
        body = body["jobs"]
    if not isinstance(body, list):
        raise InvalidError(
            "The body is no list of jobs.",
            value=type(body).__name__,
            remedy='Send a list of jobs, or {"jobs": [...]}.',
        )
    if len(body) > MAX_BULK:
        raise InvalidError(
            f"One call takes 1 to {MAX_BULK} jobs.", value=len(body), remedy="Split the list."
        )
    return [submission_of(document, "") for document in body]


def submission_of(document: Any, text: str) -> Submission:
    """Convert a document to a submission; ``text`` is stored unless it has secrets.

    Raises:
        InvalidJobError: the document is not an object.
        ImportRefusedError: an OpenPAI job that cannot be translated.
    """
    if not isinstance(document, Mapping):
        raise InvalidJobError(
            errors=[
                FieldError(
                    field="",
                    value=None if document is None else type(document).__name__,
                    message="The document is no object.",
                    remedy="Send an object with name, virtual_cluster and roles.",
                )
            ]
        )
    if not is_openpai(document):
        kept = "" if _holds_secrets(document.get("roles")) else text
        return Submission(document=document, source_text=kept, source_format=NATIVE)
    return submission_of_import(translate_openpai(document), text)


def _holds_secrets(roles: Any) -> bool:
    """Return whether the text has secret values and must not be stored."""
    named = roles.values() if isinstance(roles, Mapping) else ()
    return any(isinstance(role, Mapping) and role.get("secrets") for role in named)
