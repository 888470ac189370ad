"""Import of documents of other systems: context for importers, and submission of their jobs."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from hashlib import sha256
from secrets import token_hex
from typing import Any, Final

from django.db import transaction

from scheduling.clusters.queries.import_rules import list_import_rules
from scheduling.compat.context import Context, Rule
from scheduling.compat.result import Imported
from scheduling.compat.slurm.job import ARRAY_LABEL
from scheduling.core.sweeps import LABEL, label_of
from scheduling.jobs.models import Job
from scheduling.jobs.queries.submit_context import SubmitContext
from scheduling.jobs.services.submission import Submission, submit_job, submit_jobs
from scheduling.sweeps.services import keep_sweep
from tenants.roles import Permission
from tenants.viewers import Viewer

ARRAY_JOB: Final = "SLURM_ARRAY_JOB_ID"


def import_context(
    viewer: Viewer, ground: SubmitContext, now: datetime, *, virtual_cluster: str = ""
) -> Context:
    """Return the import context for this viewer.

    Args:
        viewer: submits the document.
        ground: submit context.
        now: current time.
        virtual_cluster: chosen by the viewer, if any.
    """
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
            for name, cluster in ground.clusters.items()
            if viewer.can(Permission.SUBMIT_JOBS, cluster.tenant_id)
        },
        device_types=tuple(ground.types),
        virtual_cluster=virtual_cluster,
        now=now,
    )


def submission_of_import(
    imported: Imported, text: str, chosen: Mapping[str, str] | None = None
) -> Submission:
    """Return a translated job with warnings for omitted parts, and its text.

    A text with secrets is not stored.

    Args:
        imported: the translation.
        text: the document itself.
        chosen: parameters of the request, such as the virtual cluster.
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


def submit_import(
    imported: Imported,
    submission: Submission,
    *,
    viewer: Viewer,
    ground: SubmitContext,
    now: datetime,
    idempotency_key: str = "",
) -> tuple[list[Job], bool]:
    """Submit all jobs of a document, all or none; array tasks get its number.

    Tasks beyond the concurrency limit are held, as in a sweep.

    Returns:
        The jobs, and whether they are new: a used idempotency key returns the earlier jobs.
    """
    sweep = _sweep_of(imported, idempotency_key)
    with transaction.atomic():
        first, is_new = submit_job(
            submission=replace(submission, document=_in_sweep(submission.document, sweep, 0)),
            viewer=viewer,
            ground=ground,
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
            ground=ground,
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
    """Return the sweep of the jobs; None if all of them may run at a time."""
    if imported.max_parallel is None:
        return None
    name = imported.spec["labels"][ARRAY_LABEL]
    # A repetition with the same key must be the same document.
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
    """Return the other tasks of the array."""
    # A write-only token gets the same response to a repetition as to the first request.
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
