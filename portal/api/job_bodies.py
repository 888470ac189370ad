"""Job documents in requests: native or OpenPAI, one or many, as submissions."""

from collections.abc import Mapping
from typing import Any, Final

from django.conf import settings
from rest_framework.request import Request

from portal.api.importers.documents import is_openpai
from portal.api.importers.openpai import translate_openpai
from scheduling.services.drafts import Ground, InvalidJobError, read_ground
from scheduling.services.submission import MAX_BULK, Submission
from tenants.errors import FieldError, InvalidError
from tenants.viewers import Viewer

NATIVE: Final = "native"
OPENPAI: Final = "openpai"


def ground_for(viewer: Viewer) -> Ground:
    """What the viewer's documents are checked against."""
    return read_ground(viewer=viewer, images_ignored=settings.TESSERA.images == "ignore")


def submission_from(request: Request) -> Submission:
    """The one job in the body.

    Raises:
        InvalidJobError: the body is no object.
        ImportRefusedError: it is an OpenPAI job that cannot be translated.
    """
    return _submission(request.data, getattr(request, "_tessera_text", ""))


def submissions_from(request: Request) -> list[Submission]:
    """The jobs in the body: a list, or an object with the list ``jobs``.

    Raises:
        InvalidError: it is neither.
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
    return [_submission(document, "") for document in body]


def _submission(document: Any, text: str) -> Submission:
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
    imported = translate_openpai(document)
    lost = [f"{entry.field}: {entry.message}" for entry in imported.unsupported]
    return Submission(
        document=imported.spec,
        source_text="" if document.get("secrets") else text,
        source_format=OPENPAI,
        warnings=(*imported.warnings, *lost),
    )


def _holds_secrets(roles: Any) -> bool:
    """Whether the text must not be kept, since it holds values that nobody shall read."""
    named = roles.values() if isinstance(roles, Mapping) else ()
    return any(isinstance(role, Mapping) and role.get("secrets") for role in named)
