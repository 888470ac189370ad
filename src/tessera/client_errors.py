"""Errors of the REST client; ``tessera.client`` exports them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final


class ClientError(Exception):
    """Base of the errors of ``tessera.client``."""


class UnreachableError(ClientError):
    """The portal did not respond."""

    def __init__(self, url: str, cause: str) -> None:
        super().__init__(f"no response from {url}: {cause}")
        self.url = url


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldError:
    """One invalid field of a request: its place, the error and the remedy."""

    field: str
    value: Any
    message: str
    remedy: str


class ApiError(ClientError):
    """The portal refused a request.

    Attributes:
        status: HTTP status.
        code: stable name of the problem.
        title: description of the problem.
        errors: the invalid fields; may be empty.
        body: the whole response.
        url: the portal's address.
    """

    def __init__(
        self, *, status: int, body: Mapping[str, Any], reason: str, url: str = ""
    ) -> None:
        self.status = status
        self.url = url
        self.body = body
        self.code = str(body.get("code") or f"http-{status}")
        self.title = str(body.get("title") or reason or f"HTTP status {status}")
        self.errors = tuple(_field_errors(body))
        super().__init__(f"{self.title} ({self.code})")


def seen_fingerprint(error: ApiError) -> str:
    """Return the fingerprint of the node's host key in an error, or an empty string.

    Args:
        error: the error of ``add_node`` without a fingerprint.
    """
    if error.status != 409:
        return ""
    value = error.body.get("host_key_fingerprint") or error.body.get("fingerprint")
    found = [e.value for e in error.errors if e.field == "host_key_fingerprint" and e.value]
    return str(value or (found[0] if found else ""))


JUMP_KEY: Final = "jump_host_key_fingerprint"


def seen_key(error: ApiError) -> tuple[str, str]:
    """Return the field of ``add_node`` that confirms a key in an error, and the fingerprint.

    The fingerprint is empty if the error has no key. The key of a jump host comes first.
    """
    found = [e.value for e in error.errors if e.field == JUMP_KEY and e.value]
    if error.status == 409 and found:
        return JUMP_KEY, str(found[0])
    return "host_key_fingerprint", seen_fingerprint(error)


def _field_errors(body: Mapping[str, Any]) -> Iterator[FieldError]:
    for error in body.get("errors") or ():
        if isinstance(error, Mapping):
            yield FieldError(
                field=str(error.get("field") or ""),
                value=error.get("value"),
                message=str(error.get("message") or ""),
                remedy=str(error.get("remedy") or ""),
            )
