"""Translation and submission of job documents of other systems."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from hashlib import sha256
from secrets import token_hex
from typing import Any, ClassVar, Final, TypedDict

from django.db import transaction
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.cluster import UnsupportedOut
from portal.api.documents import (
    MAX_BODY_BYTES,
    AnyTextParser,
    read_document,
    recognise,
    refuse_size,
    submission_of_import,
    submit_context_for,
    translate,
)
from portal.api.job_shapes import AcceptedJobOut, accepted_job_out
from portal.api.schema import DRY_RUN, IDEMPOTENCY_KEY, Op
from portal.api.views import ApiViewSet
from scheduling.clusters.queries.cpu_pools import stored_pools
from scheduling.clusters.queries.import_rules import list_import_rules
from scheduling.compat.context import Context, Rule
from scheduling.compat.documents import decode_text
from scheduling.compat.formats import IMPORTERS, format_named
from scheduling.compat.result import Imported
from scheduling.compat.slurm.job import ARRAY_LABEL
from scheduling.core.jobspec import MAX_SPEC_BYTES
from scheduling.core.sweeps import LABEL, label_of
from scheduling.jobs.models import Job
from scheduling.jobs.queries.instances import parts_among
from scheduling.jobs.queries.jobs import rows_of_jobs
from scheduling.jobs.queries.submit_context import SubmitContext, types_by_alias
from scheduling.jobs.services.submission import Submission, submit_job, submit_jobs
from scheduling.sweeps.services import keep_sweep
from tenants.clock import database_now
from tenants.errors import InvalidError
from tenants.roles import Permission
from tenants.viewers import Viewer

_CLUSTER: Final = OpenApiParameter(
    "virtual_cluster", str, description="Virtual cluster; replaces the one in the document."
)
AUTO: Final = "auto"
"""Detect the format from the document."""

ARRAY_JOB: Final = "SLURM_ARRAY_JOB_ID"
_ENVELOPES: Final = frozenset({"text", "script", "document"})


class UnsupportedFormatError(InvalidError):
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

    ``format`` is the detected format. ``more`` lists the other tasks of an array, and ``jobs`` all
    submitted jobs. ``nodes`` lists the hosts of a document of nodes, each in the form that the
    request to add a node accepts.
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
            # The result is a job, so the size limit of jobs applies.
            refuse_size(len(text), MAX_SPEC_BYTES, field="text")
        name = _format_of(asked, text)
        now, submit_context = database_now(), submit_context_for(self.viewer)
        cluster = self.query.text("virtual_cluster")
        context = import_context(self.viewer, submit_context, now, virtual_cluster=cluster)
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
            submit_context=submit_context,
            now=now,
            idempotency_key=request.headers.get("Idempotency-Key", ""),
        )
        first = jobs[0]
        row = rows_of_jobs(self.viewer, [first.pk])[first.pk]
        accepted = accepted_job_out(row, first.warnings, parts_among([first])[first.pk])
        made = [job.pk for job in jobs]
        return Response({**body, "job": accepted, "jobs": made}, status=201 if is_new else 200)


def _format_of(asked: str, text: bytes) -> str:
    """Return the requested format, or the format detected in the text."""
    found = recognise(decode_text(text))[0] if asked == AUTO else format_named(asked)
    if found:
        return found
    raise UnsupportedFormatError(
        "The format of the document cannot be detected."
        if asked == AUTO
        else f"There is no importer for {asked}.",
        field="format",
        value=asked,
        remedy=f"Use one of {', '.join(IMPORTERS)}; submit a native job specification unchanged."
        if asked == AUTO
        else f"Use one of {', '.join(IMPORTERS)}, or {AUTO}.",
    )


def _text_of(request: Request, name: str) -> tuple[bytes, str]:
    """Return the document and its media type; a JSON object with one text is unwrapped."""
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
                "In JSON, the script or document is one string.",
                field=envelope[0] if envelope else "text",
                value=envelope[1] if envelope else None,
                remedy='Send {"text": "..."} without other fields, or the text itself.',
            )
    return body, media_type


def _check_jobs(imported: Imported) -> None:
    if imported.nodes:
        raise InvalidError(
            "The document describes nodes. Nodes are added one by one, because each host key "
            "must be confirmed.",
            field="nodes",
            value=len(imported.nodes),
            remedy="Translate with dry_run=1, and send each item of nodes to /api/v1/nodes/.",
        )


def import_context(
    viewer: Viewer, submit_context: SubmitContext, now: datetime, *, virtual_cluster: str = ""
) -> Context:
    """Return the import rules and virtual clusters that a translation may use for this viewer."""
    return Context(
        rules={
            (row.kind, row.name): Rule(
                virtual_cluster=row.virtual_cluster,
                tenant=str(row.tenant_id or ""),
                priority=row.priority,
                opportunistic=row.opportunistic,
            )
            for row in list_import_rules(viewer)
        },
        clusters={
            name: str(cluster.tenant_id)
            for name, cluster in submit_context.clusters.items()
            if viewer.can(Permission.SUBMIT_JOBS, cluster.tenant_id)
        },
        device_types=tuple(submit_context.types),
        aliases=types_by_alias(),
        virtual_cluster=virtual_cluster,
        now=now,
        has_cpu_pools=bool(stored_pools()),
    )


def submit_import(
    imported: Imported,
    submission: Submission,
    *,
    viewer: Viewer,
    submit_context: SubmitContext,
    now: datetime,
    idempotency_key: str = "",
) -> tuple[list[Job], bool]:
    """Submit all jobs of a document, or none of them.

    The tasks of an array share the ID of the first job as array number. Tasks beyond the
    concurrency limit are held, as in a sweep.

    Returns:
        The jobs, and whether they are new: a used idempotency key returns the earlier jobs.
    """
    sweep = _sweep_of(imported, idempotency_key)
    with transaction.atomic():
        first, is_new = submit_job(
            submission=replace(submission, document=_in_sweep(submission.document, sweep, 0)),
            viewer=viewer,
            submit_context=submit_context,
            now=now,
            idempotency_key=idempotency_key,
        )
        if not is_new:
            return [first, *_others_of_array(viewer, first)], False
        if not imported.more:
            return [first], True
        others = submit_jobs(
            submissions=[
                replace(submission, document=_in_sweep(_of_array(spec, first.pk), sweep, number))
                for number, spec in enumerate(imported.more, 1)
            ],
            viewer=viewer,
            submit_context=submit_context,
            now=now,
        )
        if sweep is not None:
            keep_sweep(viewer=viewer, jobs=[first, *others], now=now, **asdict(sweep))
    return [first, *others], True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sweep:
    name: str
    label: str
    grid: Mapping[str, list[str]]
    max_parallel: int


def _sweep_of(imported: Imported, idempotency_key: str) -> _Sweep | None:
    """Return the sweep that limits concurrent jobs, or None if all may run at the same time."""
    if imported.max_parallel is None:
        return None
    name = imported.spec["labels"][ARRAY_LABEL]
    # A repeated request with the same key must contain the same document.
    mark = sha256(idempotency_key.encode()).hexdigest() if idempotency_key else token_hex(3)
    tasks = [str(spec["roles"]["worker"]["env"]["SLURM_ARRAY_TASK_ID"]) for spec in imported.specs]
    return _Sweep(
        name=name,
        label=label_of(name, mark[:6]),
        grid={"SLURM_ARRAY_TASK_ID": tasks},
        max_parallel=imported.max_parallel,
    )


def _in_sweep(spec: Mapping[str, Any], sweep: _Sweep | None, number: int) -> Mapping[str, Any]:
    if sweep is None:
        return spec
    waits = {"held": True} if number >= sweep.max_parallel else {}
    return {**spec, "labels": {**spec.get("labels", {}), LABEL: sweep.label}, **waits}


def _others_of_array(viewer: Viewer, first: Job) -> list[Job]:
    """Return the tasks of an array except the first one."""
    # A write-only token gets the same response to a repeated request as to the first one.
    together = Job.objects.visible_to(viewer, Permission.SUBMIT_JOBS).filter(
        owner_id=first.owner_id, submitted_at=first.submitted_at, pk__gt=first.pk
    )
    return [
        job
        for job in together.order_by("pk")
        if job.spec["roles"].get("worker", {}).get("env", {}).get(ARRAY_JOB) == str(first.pk)
    ]


def _of_array(spec: Mapping[str, Any], array_id: int) -> dict[str, Any]:
    roles = {
        name: {**role, "env": {**role.get("env", {}), ARRAY_JOB: str(array_id)}}
        for name, role in spec["roles"].items()
    }
    return {**spec, "roles": roles}
