"""Base classes of REST resources: viewer, query parameters, pages, versions, idempotency keys."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeVar

from django.db.models import Model, QuerySet
from django.http import Http404
from django.utils.cache import patch_cache_control
from rest_framework import viewsets
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from portal.api.authentication import viewer_from
from portal.api.queries import Query, pick
from portal.api.schema import ApiSchema, Op
from scheduling.common.paging import Page, cut, read_cursor
from scheduling.jobs.services.idempotency import read_key, used_key
from scheduling.secrets import fingerprint
from tenants.clock import database_now
from tenants.errors import ConflictError, FieldError, ForbiddenError, InvalidError
from tenants.roles import Permission, scopes_allow
from tenants.services import FormSentError, act_once
from tenants.viewers import Viewer

R = TypeVar("R")
M = TypeVar("M", bound=Model)
_NO_OP: Final = Op()
_VERSION: Final = re.compile("[0-9]{1,9}")
_DIGEST: Final = re.compile("[0-9a-f]{32}")
T = TypeVar("T")


class KnownFormats(DefaultContentNegotiation):
    """Content negotiation that treats an unknown ``format`` as an ordinary parameter.

    REST framework returns 404 for an unknown value, even for addresses without a ``format``.
    """

    def filter_renderers(
        self, renderers: Iterable[BaseRenderer], format: str
    ) -> list[BaseRenderer]:
        """Return the renderers of a format; an unknown format returns all of them.

        The check of query parameters then rejects the unknown value with a message.
        """
        known = list(renderers)
        return [one for one in known if one.format == format] or known


class ViewerViewSet(viewsets.ViewSet):
    """Base of views with a viewer; it rejects unknown query parameters."""

    content_negotiation_class = KnownFormats
    needs: ClassVar[Permission | None] = None

    def parameters(self) -> Iterable[str]:
        return ()

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Authenticate the request, reject unknown parameters, and check the token's scope."""
        super().initial(request, *args, **kwargs)
        self.viewer: Viewer = viewer_from(request)
        self.query = Query(request.query_params, self.parameters())
        if self.needs is not None:
            require_scope(self.viewer, self.needs)

    def finalize_response(
        self, request: Request, response: Any, *args: Any, **kwargs: Any
    ) -> Response:
        """Exclude responses from shared caches, since they depend on the caller."""
        answer = super().finalize_response(request, response, *args, **kwargs)
        patch_cache_control(answer, private=True, no_cache=True)
        return answer


class ApiViewSet(ViewerViewSet):
    """Base of REST resources; ``operations`` declares parameters and responses of each method."""

    collection: ClassVar[str]
    operations: ClassVar[Mapping[str, Op]] = {}
    schema = ApiSchema()
    lookup_value_converter = "int"

    def parameters(self) -> Iterable[str]:
        return self.operations.get(self.action, _NO_OP).parameters

    def page(self, found: Page[R], out: Callable[[R], Mapping[str, Any]]) -> Response:
        answer = self.operations[self.action].answer
        wanted = self.query.picked(sorted(answer.__required_keys__ | answer.__optional_keys__))
        results = [pick(out(row), wanted) for row in found.results]
        return Response({"results": results, "next_cursor": found.next_cursor})

    def rows(self, found: QuerySet[M]) -> Page[M]:
        """Return a page of a queryset in ascending order of primary keys."""
        limit, last = self.query.limit(), read_cursor(self.query.cursor())
        left = found.order_by("pk") if last is None else found.filter(pk__gt=last[0])
        return cut(list(left.order_by("pk")[: limit + 1]), limit, lambda row: int(row.pk))

    def cut(self, rows: Iterable[R], key: Callable[[R], int]) -> Page[R]:
        """Return a page of loaded rows in ascending order of ``key``."""
        limit, last = self.query.limit(), read_cursor(self.query.cursor())
        ordered = sorted(rows, key=key)
        left = [row for row in ordered if last is None or key(row) > last[0]]
        return cut(left[: limit + 1], limit, key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    """An empty request body."""


class NoSuchAddress(APIView):
    """Fallback view for addresses that do not exist."""

    schema = None  # the framework omits this view from the document

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Return 404 before authentication and other checks."""
        raise Http404


def require_scope(viewer: Viewer, permission: Permission) -> None:
    """Check that the scopes of the token cover ``permission``.

    Raises:
        ForbiddenError: the scopes do not cover it.
    """
    if not scopes_allow(viewer.scopes, permission):
        raise ForbiddenError(
            "The token's scopes do not cover this.",
            field="permission",
            value=str(permission),
            remedy="Use a token whose scopes cover it, or sign in.",
        )


def tag_of(version: int | str) -> str:
    """Return the ``ETag`` of a version or digest."""
    return f'"{version}"'


def versioned(body: Mapping[str, Any], version: int | str, *, status: int = 200) -> Response:
    """Return a response with the ``ETag`` of its row."""
    return Response(body, status=status, headers={"ETag": tag_of(version)})


def expected_version(request: Request) -> int | None:
    """Return the version in ``If-Match``, or None if the header is missing or ``*``.

    Raises:
        InvalidError: the value is not a version from an ``ETag`` of this API.
    """
    found = _if_match(request, _VERSION)
    return int(found) if found else None


def expected_digest(request: Request) -> str:
    """Return the digest in ``If-Match``, or an empty text if the header is missing or ``*``.

    Raises:
        InvalidError: the value is not a digest from an ``ETag`` of this API.
    """
    return _if_match(request, _DIGEST)


def _if_match(request: Request, shape: re.Pattern[str]) -> str:
    given = request.headers.get("If-Match", "").strip()
    if given in ("", "*"):
        return ""
    found = given.removeprefix("W/").strip('"')
    if shape.fullmatch(found):
        return found
    raise InvalidError(
        "This is not a valid ETag.",
        field="If-Match",
        value=given,
        remedy="Send the ETag from your last read of the resource.",
    )


class ToldOnceError(ConflictError):
    """The idempotency key has created an object whose secret only the first response contained."""

    code = "told-once"
    title = "The secret was shown only in the first response"

    @classmethod
    def of(cls, kind: str, made: int | None, remedy: str) -> "ToldOnceError":
        """Return the error for a repeated request; ``remedy``: how to create a new secret."""
        message = f"The key created {kind} {made}. Its secret was shown only in that response."
        return cls(errors=(FieldError(field="id", value=made, message=message, remedy=remedy),))


class WithdrawnError(ConflictError):
    """The object that the idempotency key created does not exist any more."""

    code = "withdrawn"
    title = "The resource created with this key no longer exists"

    @classmethod
    def of(cls, kind: str, made: int) -> "WithdrawnError":
        message = f"The key created {kind} {made}, which has been deleted since."
        remedy = "Use a new key to create another one."
        return cls(errors=(FieldError(field="id", value=made, message=message, remedy=remedy),))


def make_with_key(
    request: Request, act: Callable[[], T], *, viewer: Viewer, made_key: Callable[[T], int]
) -> T:
    """Create the requested object, once per ``Idempotency-Key``.

    A key is stored for a day, for one body at one address. ``act`` creates the object (see
    ``tenants.services.act_once``), and ``made_key`` returns its primary key.

    Raises:
        FormSentError: the object exists; ``made`` has its primary key.
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
        remedy = "Use a new key for a new resource."
        raise used_key(key, "The key was already used for another request.", remedy) from None
