"""Conversion of API errors to problem+json documents with stable codes (RFC 9457)."""

import logging
from typing import Any, Final

from django.core.exceptions import PermissionDenied
from django.db import OperationalError
from django.http import Http404, JsonResponse
from rest_framework import exceptions
from rest_framework.response import Response

from portal.api.schema import PROBLEM
from scheduling.compat.result import ImportRefusedError
from scheduling.core.cells import CellError
from scheduling.core.jobspec import InvalidDocumentError
from scheduling.core.jobspec.errors import MAX_ERRORS
from scheduling.jobs.services.lifecycle import StaleJobError
from tenants.audit import current_request_id
from tenants.errors import DomainError, FieldError

logger = logging.getLogger(__name__)

_CODES: Final = {
    400: ("bad-request", "The request is not valid"),
    401: ("not-authenticated", "Sign in, or send a token"),
    403: ("forbidden", "You may not do this"),
    404: ("not-found", "Not found, or you may not see it"),
    405: ("method-not-allowed", "This address does not support this method"),
    406: ("not-acceptable", "The response is available only as JSON"),
    415: ("unsupported-media-type", "Send JSON or YAML"),
    429: ("throttled", "Too many requests"),
}


def problem(
    code: str, title: str, status_code: int, errors: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """Return the problem document ``{type, title, status, code, errors, request_id}``."""
    return {
        "type": f"urn:tessera:problem:{code}",
        "title": title,
        "status": status_code,
        "code": code,
        "errors": (errors or [])[:MAX_ERRORS],
        "request_id": current_request_id(),
    }


def problem_response(error: Exception, context: dict[str, Any]) -> Response | None:
    """Convert an exception to a problem response (the exception handler of REST framework)."""
    found = _document_of(error)
    if found is None:
        return None  # a bug: Django logs it and responds with 500
    document, headers = found
    return Response(
        _sayable(document), status=document["status"], headers=headers, content_type=PROBLEM
    )


def _sayable(found: Any) -> Any:
    """Escape lone surrogates, which JSON cannot encode, in all strings of a value."""
    if isinstance(found, str):
        return found.encode("utf-8", "backslashreplace").decode()
    if isinstance(found, dict):
        return {_sayable(key): _sayable(inner) for key, inner in found.items()}
    if isinstance(found, list | tuple):
        return [_sayable(inner) for inner in found]
    return found


def plain_problem(code: str, title: str, status_code: int, remedy: str = "") -> JsonResponse:
    """Return a problem response for code outside REST framework views."""
    errors = [{"field": "", "value": None, "message": f"{title}.", "remedy": remedy}]
    return JsonResponse(
        problem(code, title, status_code, errors), status=status_code, content_type=PROBLEM
    )


def problem_page(error: DomainError) -> JsonResponse:
    """Return the problem response of a domain error outside of a REST framework view."""
    document, headers = _domain_document(error)
    return JsonResponse(document, status=error.status, content_type=PROBLEM, headers=headers)


def _domain_document(error: DomainError) -> tuple[dict[str, Any], dict[str, str]]:
    document = problem(_code(error), error.title, error.status, _fields(error.errors))
    wait = error.retry_after
    return document, {} if wait is None else {"Retry-After": str(wait)}


def _document_of(error: Exception) -> tuple[dict[str, Any], dict[str, str]] | None:
    if isinstance(error, DomainError):
        return _domain_document(error)
    if isinstance(error, ImportRefusedError | InvalidDocumentError):
        errors = [entry.to_json() for entry in error.errors]
        return problem(error.code, "The document is not valid", 400, errors), {}
    if isinstance(error, CellError):
        fault = FieldError(
            field=error.field, value=error.value, message=str(error), remedy=error.remedy
        )
        title = "The cluster specification is not valid"
        return problem("invalid-cluster", title, 400, _fields((fault,))), {}
    if isinstance(error, StaleJobError):
        return problem("stale-job", "The state of the job has just changed; reload it", 409), {}
    if isinstance(error, OperationalError):
        # The database is locked, full or unreachable. Nothing of the request was stored, or its
        # idempotency key detects a repetition.
        logger.error("the database is unavailable: %s", error)
        title = "The database is temporarily unavailable; try again"
        return problem("database-unavailable", title, 503), {"Retry-After": "5"}
    return _framework_document(error)


def _framework_document(error: Exception) -> tuple[dict[str, Any], dict[str, str]] | None:
    if isinstance(error, Http404):
        error = exceptions.NotFound()
    elif isinstance(error, PermissionDenied):
        error = exceptions.PermissionDenied()
    if not isinstance(error, exceptions.APIException):
        return None
    code, title = _CODES.get(error.status_code, ("error", "The request failed"))
    headers = {}
    if getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = error.auth_header  # type: ignore[attr-defined]
    if getattr(error, "wait", None):
        headers["Retry-After"] = str(int(error.wait) + 1)  # type: ignore[attr-defined]
    errors = [{"field": "", "value": None, "message": str(error.detail), "remedy": ""}]
    return problem(code, title, error.status_code, errors), headers


def _code(error: DomainError) -> str:
    """Return the code of the faults if they share one, else the code of the error."""
    codes = {fault.code for fault in error.errors if fault.code}
    return codes.pop() if len(codes) == 1 else error.code


def _fields(faults: tuple[FieldError, ...]) -> list[dict[str, Any]]:
    return [
        {**fault.as_dict(), **({"code": fault.code} if fault.code else {})} for fault in faults
    ]
