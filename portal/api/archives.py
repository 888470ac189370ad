"""Source archives: uploaded once, referenced by their digest in jobs."""

from collections.abc import Iterable
from datetime import datetime
from functools import partial
from typing import Annotated, Any, ClassVar, Final, TypedDict

from drf_spectacular.utils import OpenApiParameter
from rest_framework.parsers import BaseParser, MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.response_models import Body, From
from portal.api.schema import PAGE, Op
from portal.api.views import ApiViewSet
from scheduling.jobs.queries.archives import ArchiveRow, page_of_archives
from scheduling.jobs.services.archives import store_archive
from tenants.clock import database_now
from tenants.errors import InvalidError
from tenants.roles import Permission
from tenants.selectors import tenant_for
from tenants.viewers import Viewer
from workers.conf import ARCHIVES_DIR, worker_settings

PIECE_BYTES: Final = 1 << 20
_NAME: Final = OpenApiParameter("name", str, description="Name of the file, for display.")
_TENANT: Final = OpenApiParameter(
    "tenant", str, description="Name; required if you may submit to several tenants."
)


class RawParser(BaseParser):
    """Pass the bytes of the body on unparsed; the view reads them in chunks."""

    media_type = "application/octet-stream"

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> Any:
        """The stream itself."""
        return stream


class GzipParser(RawParser):
    """``application/gzip``."""

    media_type = "application/gzip"


class ZipParser(RawParser):
    """``application/zip``."""

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
    """Source archives of your tenants."""

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
            archives_dir=worker_settings().data_dir / ARCHIVES_DIR,
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
            "The form has no file, or has more than that.",
            field=next(iter(sorted(unknown)), "file"),
            remedy="Send the archive as the field file, and nothing else.",
        )
    return given.name or name, given.chunks(PIECE_BYTES)


def _tenant_id(viewer: Viewer, name: str) -> int:
    if name:
        return tenant_for(viewer, name).pk
    able = [i for i in viewer.tenant_names if viewer.can(Permission.SUBMIT_JOBS, i)]
    if len(able) == 1:
        return able[0]
    raise InvalidError(
        "It is not clear for which tenant the archive is.",
        field="tenant",
        remedy="Give one of your tenants.",
    )
