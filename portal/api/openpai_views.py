"""What all addresses of OpenPAI's protocol share: who calls, what is refused, and how that reads.

They are described by OpenPAI and not in our own schema. Errors are ``{code, message}`` as there,
with our list of faults beside it.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Final

from rest_framework.response import Response

from portal.api.errors import problem_response
from portal.api.imports import AnyTextParser
from portal.api.views import NoSuchAddress, ViewerViewSet
from tenants.errors import ConflictError, NotFoundError

_CODES: Final[Mapping[int, str]] = {
    400: "InvalidParametersError",
    401: "UnauthorizedUserError",
    403: "ForbiddenUserError",
    404: "NoApiError",
    409: "ConflictJobError",
}
_NAMED: Final[Mapping[str, str]] = {
    "unknown-vc": "NoVirtualClusterError",
    "no-job": "NoJobError",
    "no-job-config": "NoJobConfigError",
    "no-virtual-cluster": "NoVirtualClusterError",
    "invalid-spec": "InvalidProtocolError",
    "invalid-document": "InvalidProtocolError",
    "unsupported-field": "InvalidProtocolError",
}


class NoJobError(NotFoundError):
    """There is no job of this name, or the caller may not see it."""

    code = "no-job"


class NoJobConfigError(NotFoundError):
    """The job has no document of OpenPAI's that could be shown."""

    code = "no-job-config"


class NoVirtualClusterError(NotFoundError):
    """There is no virtual cluster of this name, or the caller may not see it."""

    code = "no-virtual-cluster"


class TakenNameError(ConflictError):
    """The caller has a job of this name already."""


class OpenPaiViewSet(ViewerViewSet):
    """An address of OpenPAI's protocol. ``takes`` names its query parameters by method."""

    schema = None
    parser_classes = (AnyTextParser,)
    takes: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def parameters(self) -> Iterable[str]:
        """Names of the query parameters that have a meaning here."""
        return self.takes.get(self.action, ())

    def get_exception_handler(self) -> Callable[[Exception, dict[str, Any]], Response | None]:
        """Errors as OpenPAI's clients read them."""
        return refusal


class NoSuchOpenPaiAddress(NoSuchAddress):
    """Whatever OpenPAI has at an address that is not part of this."""

    def get_exception_handler(self) -> Callable[[Exception, dict[str, Any]], Response | None]:
        """Errors as OpenPAI's clients read them."""
        return refusal


def refusal(error: Exception, context: dict[str, Any]) -> Response | None:
    """Our problem document as OpenPAI's ``{code, message}``, with its faults."""
    found = problem_response(error, context)
    if found is None:
        return None
    problem: dict[str, Any] = found.data
    faults = problem["errors"]
    words = [f"{fault['field']}: {fault['message']}".removeprefix(": ") for fault in faults]
    kinds = (problem["code"], *(fault.get("code", "") for fault in faults))
    code = next((_NAMED[kind] for kind in kinds if kind in _NAMED), None)
    return Response(
        {
            "code": code or _CODES.get(found.status_code, "UnknownError"),
            "message": " ".join(words) or problem["title"],
            "errors": faults,
        },
        status=found.status_code,
        headers={name: value for name, value in found.headers.items() if name != "Content-Type"},
        content_type="application/json",
    )
