"""Parsers of request documents with size limits, and job submissions built from documents."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any, Final, NoReturn

from django.conf import settings
from rest_framework.parsers import BaseParser
from rest_framework.request import Request

from scheduling.clusters.queries.cpu_pools import stored_pools
from scheduling.compat.context import Context
from scheduling.compat.documents import MAX_YAML_BYTES, is_json, parse_document
from scheduling.compat.formats import format_of_document, format_of_text, import_text
from scheduling.compat.openpai.job import is_openpai, translate_openpai
from scheduling.compat.result import Imported
from scheduling.core.jobspec import MAX_SPEC_BYTES
from scheduling.jobs.queries.submit_context import SubmitContext, read_submit_context
from scheduling.jobs.services.archives import TooLargeError
from scheduling.jobs.services.submission import MAX_BULK, Submission
from scheduling.jobs.validation import InvalidJobError
from scheduling.parallelism.services import ProfileConfig
from scheduling.rounds.snapshot import RoundConfig
from tenants.audit import current_actor
from tenants.errors import DomainError, FieldError, InvalidError
from tenants.viewers import Viewer

MAX_BODY_BYTES: Final = 4 << 20
NATIVE: Final = "native"
LARGE_YAML_BYTES: Final = 32 << 10
LARGE_JSON_BYTES: Final = 256 << 10
_RETRY_SECONDS: Final = 5
# The limit protects the interpreter of a web process, so each process has its own.
_lock: Final = threading.Lock()
_parsing: Final[set[int]] = set()


class BodyTooLargeError(TooLargeError):
    """The request, or the document in it, is larger than the limit."""

    title = "The request is too large"


class StrictJSONParser(BaseParser):
    """Parser for ``application/json`` that rejects NaN, duplicate keys, deep or large bodies."""

    media_type = "application/json"

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Any = None
    ) -> Any:
        """Return the parsed body; ``ImportRefusedError`` contains line and column."""
        most = _most_bytes(self.media_type, parser_context)
        body = bounded_body(stream, parser_context, most)
        request = (parser_context or {}).get("request")
        if request is not None:
            request._tessera_text = body.decode(errors="replace")
        return read_document(body, self.media_type, max_bytes=MAX_BODY_BYTES)


class YAMLParser(StrictJSONParser):
    """Parser for a safe subset of ``application/yaml`` without expanding aliases."""

    media_type = "application/yaml"


class AnyTextParser(BaseParser):
    """Parser that accepts any body as bytes; the importer of the format parses them."""

    media_type = "*/*"

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Any = None
    ) -> Any:
        """Return the bytes of the body; raise ``BodyTooLargeError`` above the size limit."""
        return bounded_body(stream, parser_context)


def bounded_body(stream: IO[Any], parser_context: Any = None, most: int = MAX_BODY_BYTES) -> bytes:
    """Return the whole body.

    Raises:
        BodyTooLargeError: the body has more than ``most`` bytes; the rest is not read.
    """
    body: bytes = stream.read(most + 1)
    if len(body) > most:
        request = (parser_context or {}).get("request")
        told = str(request.META.get("CONTENT_LENGTH") or "") if request is not None else ""
        size = int(told) if told.isdecimal() else 0
        refuse_size(max(size, len(body)), most, field="body")
    return body


def refuse_size(size: int, most: int, *, field: str) -> NoReturn:
    """Raise the error for a body of ``size`` bytes where at most ``most`` are allowed.

    Raises:
        BodyTooLargeError: always.
    """
    raise BodyTooLargeError(
        f"It has {size:,} bytes; the limit is {most:,}.",
        field=field,
        value=size,
        remedy="Send a smaller document, or JSON instead of YAML."
        if most < MAX_BODY_BYTES
        else "Send a smaller document.",
    )


def _most_bytes(media_type: str, parser_context: Any) -> int:
    """Return the size limit in bytes: lower for YAML, lowest for the YAML of a single job."""
    if media_type == StrictJSONParser.media_type:
        return MAX_BODY_BYTES
    view = (parser_context or {}).get("view")
    operation = getattr(view, "operations", {}).get(getattr(view, "action", None))
    return MAX_SPEC_BYTES if getattr(operation, "holds_one_job", False) else MAX_YAML_BYTES


class LargeParseRunningError(DomainError):
    """Another large document of the same user is being parsed."""

    code = "large-parse-running"
    status = 429
    title = "Another large document of yours is still being parsed"
    retry_after = _RETRY_SECONDS


def read_document(
    text: str | bytes, content_type: str = "", *, max_bytes: int = MAX_SPEC_BYTES
) -> Any:
    """Parse a document as ``scheduling.compat.documents.parse_document`` does.

    Raises:
        ImportRefusedError: the text is not a valid document.
        LargeParseRunningError: the text is large, and the user has another large parse running.
    """
    with one_large_parse(len(text), _large(content_type)):
        return parse_document(text, content_type, max_bytes=max_bytes)


def recognise(text: str) -> tuple[str, Any]:
    """Return the format of a text (empty for a native job) and its parsed document.

    Raises:
        ImportRefusedError: the text is neither a batch script nor a document.
        LargeParseRunningError: as for ``read_document``.
    """
    if name := format_of_text(text):
        return name, None
    document = read_document(text)
    return format_of_document(document), document


def translate(name: str, text: str | bytes, context: Context, content_type: str = "") -> Imported:
    """Translate a text of a known format to a native job.

    Raises:
        ImportRefusedError: the document is malformed, or no job can represent it.
        LargeParseRunningError: as for ``read_document``.
    """
    with one_large_parse(len(text), _large(content_type)):
        return import_text(name, text, context, content_type)


def _large(content_type: str) -> int:
    return LARGE_JSON_BYTES if is_json(content_type) else LARGE_YAML_BYTES


@contextmanager
def one_large_parse(size: int, large: int) -> Iterator[None]:
    """Allow one large parse per user inside the block; up to ``large`` bytes are not limited.

    Raises:
        LargeParseRunningError: another large parse of the same user is running.
    """
    who = current_actor() if size > large else None
    if who is None or who.user_id is None:
        yield
        return
    with _lock:
        if who.user_id in _parsing:
            raise LargeParseRunningError(
                f"Documents of more than {large >> 10} KiB are parsed one at a time per user.",
                field="body",
                value=size,
                remedy=f"Retry in {_RETRY_SECONDS} s.",
            )
        _parsing.add(who.user_id)
    try:
        yield
    finally:
        with _lock:
            _parsing.discard(who.user_id)


def submit_context_for(viewer: Viewer) -> SubmitContext:
    return read_submit_context(
        viewer=viewer,
        images_ignored=settings.TESSERA.images == "ignore",
        host_network=settings.TESSERA.host_network == "gangs",
    )


def profile_config() -> ProfileConfig:
    return ProfileConfig(
        images_ignored=settings.TESSERA.images == "ignore",
        host_network=settings.TESSERA.host_network == "gangs",
    )


def round_config() -> RoundConfig:
    return RoundConfig(
        round_seconds=settings.TESSERA.round_seconds,
        images_required=settings.TESSERA.images == "required",
        using=settings.SNAPSHOT_DATABASE,
    )


def submission_from(request: Request) -> Submission:
    """Return the submission in the body of a request.

    Raises:
        InvalidJobError: the body is not an object.
        ImportRefusedError: the body is an OpenPAI job that cannot be translated.
    """
    return submission_of(request.data, getattr(request, "_tessera_text", ""))


def submissions_from(request: Request) -> list[Submission]:
    """Return the submissions in the body: a list, or an object with the list ``jobs``.

    Raises:
        InvalidError: the body has neither form.
    """
    body = request.data
    if isinstance(body, Mapping) and list(body) == ["jobs"]:
        body = body["jobs"]
    if not isinstance(body, list):
        raise InvalidError(
            "The body is not a list of jobs.",
            value=type(body).__name__,
            remedy='Send a list of jobs, or {"jobs": [...]}.',
        )
    if len(body) > MAX_BULK:
        raise InvalidError(
            f"A request takes 1 to {MAX_BULK} jobs.", value=len(body), remedy="Split the list."
        )
    return [submission_of(document, "") for document in body]


def submission_of(document: Any, text: str) -> Submission:
    """Convert a document to a submission, and store ``text`` unless it contains secrets.

    Raises:
        InvalidJobError: the document is not an object.
        ImportRefusedError: the document is an OpenPAI job that cannot be translated.
    """
    if not isinstance(document, Mapping):
        raise InvalidJobError(
            errors=[
                FieldError(
                    field="",
                    value=None if document is None else type(document).__name__,
                    message="The document is not an object.",
                    remedy="Send an object with name, virtual_cluster and roles.",
                )
            ]
        )
    if not is_openpai(document):
        kept = "" if _holds_secrets(document.get("roles")) else text
        return Submission(document=document, source_text=kept, source_format=NATIVE)
    imported = translate_openpai(document, has_cpu_pools=bool(stored_pools()))
    return submission_of_import(imported, text)


def _holds_secrets(roles: Any) -> bool:
    """Return whether a role has secret values, so that the text must not be stored."""
    named = roles.values() if isinstance(roles, Mapping) else ()
    return any(isinstance(role, Mapping) and role.get("secrets") for role in named)


def submission_of_import(
    imported: Imported, text: str, chosen: Mapping[str, str] | None = None
) -> Submission:
    """Return the submission of a translated job, with warnings for omitted parts.

    A text with secrets is not stored.

    Args:
        imported: the translation.
        text: the original document.
        chosen: parameters of the request that override the document, such as the virtual cluster.
    """
    lost = sorted(imported.unsupported, key=lambda entry: entry.needed)
    return Submission(
        document=imported.spec,
        source_text="" if imported.holds_secrets else text,
        source_format=imported.format,
        warnings=(
            *(remark.sentence for remark in imported.warnings),
            *(entry.sentence for entry in lost),
        ),
        sent={"text": text, **chosen} if chosen else text or None,
    )
