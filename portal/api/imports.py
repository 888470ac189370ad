"""Translation of other job formats, and submission unless it is a dry run."""

from collections.abc import Mapping
from typing import IO, Any, ClassVar, Final, TypedDict

from drf_spectacular.utils import OpenApiParameter
from rest_framework.parsers import BaseParser
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.cluster import UnsupportedOut
from portal.api.documents import read_document, recognise, translate
from portal.api.imported import import_context, submission_of_import, submit_import
from portal.api.job_bodies import ground_for
from portal.api.job_shapes import AcceptedJobOut, accepted_job_out
from portal.api.parsers import MAX_BODY_BYTES, bounded_body, refuse_size
from portal.api.schema import DRY_RUN, IDEMPOTENCY_KEY, Op
from portal.api.views import ApiViewSet
from scheduling.compat.documents import decode_text
from scheduling.compat.formats import IMPORTERS, format_named
from scheduling.compat.result import Imported
from scheduling.core.jobspec import MAX_SPEC_BYTES
from scheduling.jobs.queries.instances import parts_among
from scheduling.jobs.queries.jobs import rows_of_jobs
from tenants.clock import database_now
from tenants.errors import InvalidError

_CLUSTER: Final = OpenApiParameter(
    "virtual_cluster", str, description="Virtual cluster; replaces the one in the document."
)
AUTO: Final = "auto"
"""In place of a format: the one that the document shows to be its own."""

_ENVELOPES: Final = frozenset({"text", "script", "document"})


class AnyTextParser(BaseParser):
    """Accepts any body as text; the importer of the format parses it."""

    media_type = "*/*"

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Any = None
    ) -> Any:
        """Read the body; ``BodyTooLargeError`` beyond the limit."""
        return bounded_body(stream, parser_context)


class UnsupportedFormatError(InvalidError):
    """The format has no importer."""

    code = "unsupported-format"
    title = "This format cannot be imported"


class RemarkOut(TypedDict):
    """A remark about a field of the document; `field` is empty for the whole document."""

    field: str
    message: str


class RemarksOut(TypedDict):
    """Remarks under one heading: `Translated`, `Left out` or `Not supported`."""

    heading: str
    entries: list[RemarkOut]


class ImportOut(TypedDict):
    """A translated document; ``job`` is the submitted job, null for a dry run.

    ``format`` is what the text was read as, ``more`` are the other tasks of an array (and ``jobs``
    all that were submitted), ``nodes`` the hosts of a document of nodes, each as the address of
    nodes takes it.
    """

    format: str
    spec: Any
    more: list[Any]
    nodes: list[Any]
    warnings: list[str]
    unsupported: list[UnsupportedOut]
    remarks: list[RemarksOut]
    job: AcceptedJobOut | None
    jobs: list[int]


class ImportViewSet(ApiViewSet):
    """Jobs in other formats."""

    collection = "import"
    lookup_value_converter = "slug"
    parser_classes = (AnyTextParser,)
    operations: ClassVar = {
        "translate": Op(
            takes=(DRY_RUN, _CLUSTER, IDEMPOTENCY_KEY),
            body={"type": "object", "description": "A document in the format, or a script."},
            answer=ImportOut,
            status=201,
            also={200: ImportOut},
        )
    }

    def translate(self, request: Request, pk: str) -> Response:
        """Translate a job and submit it, or with `dry_run=1` only translate it.

        Format `auto` detects the format from the document. The body is the text itself, with any
        media type, or JSON with the text in `text`.
        `unsupported` lists elements without a counterpart, and whether the job depends on them
        (`needed`); a submitted job stores the list in its warnings. A repeated
        `Idempotency-Key` returns the first jobs with 200.
        """
        asked = format_named(pk) or pk
        text, media_type = _text_of(request, asked)
        if len(text) > MAX_SPEC_BYTES:
            # The result is a job, which has the same size limit.
            refuse_size(len(text), MAX_SPEC_BYTES, field="text")
        name = _format_of(asked, text)
        now, ground = database_now(), ground_for(self.viewer)
        cluster = self.query.text("virtual_cluster")
        context = import_context(self.viewer, ground, now, virtual_cluster=cluster)
        imported = translate(name, text, context, media_type)
        body = {"format": name, **imported.job_to_json()}
        if self.query.flag("dry_run"):
            return Response({**body, "job": None, "jobs": []})
        _check_jobs(imported)
        chosen = {"format": asked, "virtual_cluster": cluster}
        jobs, is_new = submit_import(
            imported,
            submission_of_import(imported, text.decode(errors="replace"), chosen),
            viewer=self.viewer,
            ground=ground,
            now=now,
            idempotency_key=request.headers.get("Idempotency-Key", ""),
        )
        first = jobs[0]
        row = rows_of_jobs(self.viewer, [first.pk])[first.pk]
        accepted = accepted_job_out(row, first.warnings, parts_among([first])[first.pk])
        made = [job.pk for job in jobs]
        return Response({**body, "job": accepted, "jobs": made}, status=201 if is_new else 200)


def _format_of(asked: str, text: bytes) -> str:
    """Return the requested format, or the one detected in the text.

    Raises:
        UnsupportedFormatError: unknown format, or none detected.
        ImportRefusedError: the text is not a document.
    """
    found = recognise(decode_text(text))[0] if asked == AUTO else format_named(asked)
    if found:
        return found
    raise UnsupportedFormatError(
        "The document does not show what it was written for."
        if asked == AUTO
        else f"No importer for {asked}.",
        field="format",
        value=asked,
        remedy=f"Use one of {', '.join(IMPORTERS)}; a job of Tessera's own is submitted as it is."
        if asked == AUTO
        else f"These work: {', '.join(IMPORTERS)}, and {AUTO}.",
    )


def _text_of(request: Request, name: str) -> tuple[bytes, str]:
    """Return the document and its media type; a JSON object of one text is an envelope.

    Raises:
        InvalidError: an envelope without text, or JSON where a script is needed.
    """
    sent: Any = request.data  # an empty body is not parsed
    body = sent if isinstance(sent, bytes) else b""
    media_type = request.content_type or ""
    if media_type.partition(";")[0].strip().lower() == "application/json":
        document = read_document(body, media_type, max_bytes=MAX_BODY_BYTES)
        envelope = (
            next(iter(document.items()))
            if isinstance(document, Mapping) and len(document) == 1 and set(document) <= _ENVELOPES
            else None
        )
        if envelope is not None and isinstance(envelope[1], str):
            return envelope[1].encode(errors="surrogatepass"), ""
        if envelope is not None or name == "sbatch":
            raise InvalidError(
                "JSON carries a script or document as one text.",
                field=envelope[0] if envelope else "text",
                value=envelope[1] if envelope else None,
                remedy='Send {"text": "..."} and nothing beside it, or the text itself.',
            )
    return body, media_type


def _check_jobs(imported: Imported) -> None:
    if imported.nodes:
        raise InvalidError(
            "These are nodes, and they are added one by one: each host key has to be confirmed.",
            field="nodes",
            value=len(imported.nodes),
            remedy="Translate with dry_run=1, and send each of nodes to /api/v1/nodes/.",
        )
