"""Objects that users store for their jobs: source archives, job templates and saved views."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated, Any, ClassVar, Final, TypedDict

from drf_spectacular.utils import OpenApiParameter
from rest_framework.parsers import BaseParser, MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.bodies import Body, From, read_body
from portal.api.schema import PAGE, Op
from portal.api.views import ApiViewSet
from scheduling.jobs.models import JobTemplate, SavedView
from scheduling.jobs.queries.archives import ArchiveRow, page_of_archives
from scheduling.jobs.services.archives import store_archive
from scheduling.jobs.services.saved import (
    delete_template,
    delete_view,
    save_template,
    save_view,
    template_for,
    templates_of,
    views_of,
)
from tenants.clock import database_now
from tenants.errors import InvalidError
from tenants.roles import Permission
from tenants.selectors import tenant_for
from tenants.viewers import Viewer
from workers.conf import worker_settings

PIECE_BYTES: Final = 1 << 20
_NAME: Final = OpenApiParameter("name", str, description="Display name of the file.")
_TENANT: Final = OpenApiParameter(
    "tenant", str, description="Name; required if you may submit to several tenants."
)


class RawParser(BaseParser):
    """Parser that leaves the body unparsed; the view reads the stream in chunks."""

    media_type = "application/octet-stream"

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> Any:
        return stream


class GzipParser(RawParser):
    media_type = "application/gzip"


class ZipParser(RawParser):
    media_type = "application/zip"


class ArchiveOut(TypedDict):
    """A source archive; a job refers to it as ``source: {archive: <sha256>}``."""

    id: int
    sha256: str
    tenant: str
    user: Annotated[str, From("owner")]
    name: str
    size: int
    created_at: datetime


class ArchiveViewSet(ApiViewSet):
    collection = "archives"
    needs = Permission.VIEW_JOBS
    parser_classes = (RawParser, GzipParser, ZipParser, MultiPartParser)
    operations: ClassVar = {
        "list": Op(takes=PAGE, answer=ArchiveOut, pages=True),
        "create": Op(
            takes=(_NAME, _TENANT),
            body={"type": "string", "format": "binary"},
            answer=ArchiveOut,
            status=201,
            also={200: ArchiveOut},
        ),
    }

    def list(self, request: Request) -> Response:
        """List source archives, newest first."""
        found = page_of_archives(self.viewer, cursor=self.query.cursor(), limit=self.query.limit())
        return self.page(found, archive_out)

    def create(self, request: Request) -> Response:
        """Upload a tar.gz or zip archive, as the body or as form field `file`.

        If an archive with the same bytes exists, it is returned with 200.
        """
        name, content = _upload(request, self.query.text("name", "source"))
        row, is_new = store_archive(
            viewer=self.viewer,
            tenant_id=_tenant_id(self.viewer, self.query.text("tenant")),
            name=name,
            content=content,
            storage=worker_settings().storage,
            now=database_now(),
            tenant_bytes=worker_settings().archive_bytes,
        )
        return Response(archive_out(ArchiveRow.of(row)), status=201 if is_new else 200)


archive_out = Body(ArchiveOut, ArchiveRow)


def _upload(request: Request, name: str) -> tuple[str, Iterable[bytes]]:
    if not request.content_type.startswith("multipart/"):
        stream = request.stream  # None for an empty body
        return name, iter(partial(stream.read, PIECE_BYTES), b"") if stream else ()
    given = request.FILES.get("file")
    unknown = {*request.data, *request.FILES} - {"file"}
    if given is None or unknown:
        raise InvalidError(
            "The form must contain exactly one file and no other fields.",
            field=next(iter(sorted(unknown)), "file"),
            remedy="Send only the archive, in the field `file`.",
        )
    return given.name or name, given.chunks(PIECE_BYTES)


def _tenant_id(viewer: Viewer, name: str) -> int:
    if name:
        return tenant_for(viewer, name).pk
    able = [i for i in viewer.tenant_names if viewer.can(Permission.SUBMIT_JOBS, i)]
    if len(able) == 1:
        return able[0]
    raise InvalidError(
        "The tenant of the archive is not specified.",
        field="tenant",
        remedy="Specify one of your tenants.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateIn:
    """A new job template; without a tenant it is private."""

    name: str
    text: str
    tenant: str = ""
    note: str = ""


class TemplateOut(TypedDict):
    """A job template; ``tenant`` is empty for a private template."""

    id: Annotated[int, From("pk")]
    name: str
    note: str
    tenant: Annotated[str, From(by=lambda row: row.tenant.name if row.tenant else "")]
    user: Annotated[str, From("owner.username")]
    created_at: datetime
    text: str


class TemplateViewSet(ApiViewSet):
    collection = "job-templates"
    needs = Permission.VIEW_JOBS
    operations: ClassVar = {
        "list": Op(takes=PAGE, answer=TemplateOut, pages=True),
        "create": Op(body=TemplateIn, answer=TemplateOut, status=201),
        "retrieve": Op(answer=TemplateOut),
        "destroy": Op(status=204),
    }

    def list(self, request: Request) -> Response:
        """List your job templates and those of your tenants."""
        return self.page(self.rows(templates_of(self.viewer)), template_out)

    def create(self, request: Request) -> Response:
        """Create a job template."""
        wanted = read_body(TemplateIn, request.data)
        made = save_template(
            viewer=self.viewer,
            name=wanted.name,
            text=wanted.text,
            tenant=wanted.tenant,
            note=wanted.note,
            now=database_now(),
        )
        return Response(template_out(made), status=201)

    def retrieve(self, request: Request, pk: int) -> Response:
        """Get a job template."""
        return Response(template_out(template_for(self.viewer, pk)))

    def destroy(self, request: Request, pk: int) -> Response:
        """Delete a job template."""
        delete_template(viewer=self.viewer, pk=pk)
        return Response(status=204)


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewIn:
    """A name, and filters of the job list as a query string."""

    name: str
    query: str


class ViewOut(TypedDict):
    """A saved view."""

    id: Annotated[int, From("pk")]
    name: str
    query: str


class SavedViewSet(ApiViewSet):
    collection = "saved-views"
    needs = Permission.VIEW_JOBS
    operations: ClassVar = {
        "list": Op(takes=PAGE, answer=ViewOut, pages=True),
        "create": Op(body=ViewIn, answer=ViewOut, status=201),
        "destroy": Op(status=204),
    }

    def list(self, request: Request) -> Response:
        """List your saved views, oldest first."""
        return self.page(self.rows(views_of(self.viewer)), view_out)

    def create(self, request: Request) -> Response:
        """Create a saved view, or replace the view with the same name."""
        wanted = read_body(ViewIn, request.data)
        query = wanted.query.removeprefix("?")
        made = save_view(viewer=self.viewer, name=wanted.name, query=query, now=database_now())
        return Response(view_out(made), status=201)

    def destroy(self, request: Request, pk: int) -> Response:
        """Delete a saved view."""
        delete_view(viewer=self.viewer, pk=pk)
        return Response(status=204)


template_out = Body(TemplateOut, JobTemplate)
view_out = Body(ViewOut, SavedView)
