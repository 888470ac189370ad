"""Submission of one job, of several jobs, or of a copy of an earlier job."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db import IntegrityError, transaction

from scheduling.common.on_commit import request_round_on_commit
from scheduling.core.jobspec import JobClass, parse_stored, part_name
from scheduling.core.lifecycle import JobState
from scheduling.core.messages import sentence
from scheduling.core.round.declared_terms import terms_document
from scheduling.core.round.parallel_plans import fingerprint_of
from scheduling.jobs.models import TEXT_MESSAGE, Job, JobDependency, JobEvent, JobSecret
from scheduling.jobs.queries.submit_context import SubmitContext
from scheduling.jobs.services.idempotency import NO_KEY, Key, read_key, refuse_used_key, used_key
from scheduling.jobs.services.job_limits import require_room
from scheduling.jobs.validation import InvalidJobError, ValidatedJob, check_draft, parts_of_draft
from scheduling.secrets import seal
from tenants.audit import AuditChange, record_many
from tenants.errors import FieldError, NotFoundError
from tenants.viewers import Viewer
from tessera.messages import stored_words

MAX_BULK: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One document to submit, and its source.

    Attributes:
        document: the native specification.
        source_text: the submitted text, which is stored and shown; empty for a form.
        source_format: native, openpai, ...
        warnings: parts that an importer could not convert, as texts.
        sent: the content that an idempotency key identifies, if it is not the document: the text
            of another system with the chosen options. Its conversion depends on rules that may
            change.
    """

    document: Mapping[str, Any]
    source_text: str = ""
    source_format: str = "native"
    warnings: tuple[str, ...] = ()
    cloned_from: int | None = None
    sent: object = None


def submit_job(
    *,
    submission: Submission,
    viewer: Viewer,
    submit_context: SubmitContext,
    now: datetime,
    idempotency_key: str = "",
) -> tuple[Job, bool]:
    """Submit one job; a used idempotency key returns the job of the first submit.

    Returns:
        The job, and whether it is new. If the job is not a gang, its first instance.

    Raises:
        InvalidJobError: the job is not valid; nothing has been stored.
        JobLimitError: the person or the tenant has too many live jobs.
        IdempotencyConflictError: the key belongs to a different job.
    """
    key = read_key(idempotency_key, _sent(submission))
    earlier = _job_of_key(viewer, key, submission)
    if earlier is not None:
        return earlier, False
    try:
        jobs = _store([submission], viewer, submit_context, now, key)
    except IntegrityError:
        earlier = _job_of_key(viewer, key, submission)
        if earlier is None:
            refuse_used_key(viewer, key)
            raise
        return earlier, False
    return jobs[0], True


def submit_jobs(
    *,
    submissions: Sequence[Submission],
    viewer: Viewer,
    submit_context: SubmitContext,
    now: datetime,
    key: Key = NO_KEY,
) -> list[Job]:
    """Submit up to 1,000 jobs, all or none, in a fixed number of statements.

    A job that is not a gang becomes one job per instance, in the count and in the result.

    Raises:
        InvalidJobError: at least one job is not valid; fields are prefixed with its position.
        JobLimitError: the person or the tenant would have too many live jobs.
        IntegrityError: the idempotency key, which the first job gets, was used before.
    """
    if not 0 < len(submissions) <= MAX_BULK:
        raise _too_many(len(submissions))
    return _store(submissions, viewer, submit_context, now, key)


def clone_job(
    *,
    job: Job,
    viewer: Viewer,
    submit_context: SubmitContext,
    now: datetime,
    idempotency_key: str = "",
) -> tuple[Job, bool]:
    """Submit the same specification again; a warning lists the secrets, which are not copied.

    Returns:
        The copy, and whether it is new: a used key returns the earlier copy.

    Raises:
        InvalidJobError: the specification is not valid any more, for example because its virtual
            cluster is archived.
        IdempotencyConflictError: the key belongs to a different job.
    """
    spec = parse_stored(job.spec)
    document = spec.to_json()
    lost = [f"{role}/{name}" for role, names in spec.secrets().items() for name in names]
    for role in document["roles"].values():
        role.pop("secrets", None)
        role.pop("image_secret", None)
    warnings = (sentence("secrets-not-copied", lost=", ".join(lost)),) if lost else ()
    submission = Submission(
        document=document,
        source_text="",
        source_format=job.source_format,
        warnings=warnings,
        cloned_from=job.pk,
    )
    return submit_job(
        submission=submission,
        viewer=viewer,
        submit_context=submit_context,
        now=now,
        idempotency_key=idempotency_key,
    )


def _store(
    submissions: Sequence[Submission],
    viewer: Viewer,
    submit_context: SubmitContext,
    now: datetime,
    key: Key,
) -> list[Job]:
    if viewer.user_id is None:
        raise NotFoundError(sentence("needs-submitter"))
    checked = _check_all(submissions, viewer, submit_context)
    accepted = [
        (part, submission)
        for draft, submission in zip(checked, submissions, strict=True)
        for part in parts_of_draft(draft)
    ]
    if len(accepted) > MAX_BULK:
        raise _too_many(len(accepted))
    rows = [
        _job_row(draft, submission, viewer.user_id, now, NO_KEY if number else key)
        for number, (draft, submission) in enumerate(accepted)
    ]
    tenants = [
        (draft.virtual_cluster.tenant_id, viewer.name_of(draft.virtual_cluster.tenant_id))
        for draft, _ in accepted
    ]
    with transaction.atomic():
        require_room(viewer.user_id, viewer.username, tenants)
        jobs = Job.objects.bulk_create(rows)
        _write_what_belongs_to(jobs, [draft for draft, _ in accepted], viewer, now)
        request_round_on_commit("submit")
    return jobs


def _write_what_belongs_to(
    jobs: Sequence[Job], drafts: Sequence[ValidatedJob], viewer: Viewer, now: datetime
) -> None:
    """Write events, dependencies, secrets and audit rows of new jobs, with one statement each."""
    text = sentence("submitted-by", username=viewer.username)
    JobEvent.objects.bulk_create(
        JobEvent(
            job=job,
            at=now,
            kind="submit",
            state=JobState.QUEUED,
            text=text.text,
            detail={TEXT_MESSAGE: text.message.to_json()},
        )
        for job in jobs
    )
    JobDependency.objects.bulk_create(
        JobDependency(job=job, after_id=after)
        for job, draft in zip(jobs, drafts, strict=True)
        for after in draft.after
    )
    JobSecret.objects.bulk_create(
        JobSecret(job=job, role=role, name=name, sealed=seal(value))
        for job, draft in zip(jobs, drafts, strict=True)
        for role, secrets in draft.spec.secrets().items()
        for name, value in secrets.items()
    )
    record_many(
        actor=viewer,
        changes=[
            AuditChange(
                action="job.submit",
                obj=job,
                after={"name": job.name, "devices": job.devices},
                tenant=job.tenant_id,
            )
            for job in jobs
        ],
    )


def _check_all(
    submissions: Sequence[Submission], viewer: Viewer, submit_context: SubmitContext
) -> list[ValidatedJob]:
    drafts: list[ValidatedJob] = []
    faults: list[FieldError] = []
    for position, submission in enumerate(submissions):
        try:
            drafts.append(
                check_draft(
                    document=submission.document, viewer=viewer, submit_context=submit_context
                )
            )
        except InvalidJobError as error:
            if len(submissions) == 1:
                raise
            faults.extend(
                FieldError(
                    field=f"{position}.{fault.field}".rstrip("."),
                    value=fault.value,
                    message=fault.message,
                    remedy=fault.remedy,
                    code=fault.code,
                )
                for fault in error.errors
            )
    InvalidJobError.raise_if(faults)
    return drafts


def _job_row(
    draft: ValidatedJob, submission: Submission, owner_id: int, now: datetime, key: Key
) -> Job:
    spec = draft.spec
    return Job(
        name=spec.name,
        tenant_id=draft.virtual_cluster.tenant_id,
        virtual_cluster=draft.virtual_cluster,
        owner_id=owner_id,
        state_since=now,
        job_class=draft.job_class.value,
        priority=-1 if draft.job_class is JobClass.OPPORTUNISTIC else draft.priority,
        labels=dict(spec.labels),
        note=spec.note,
        spec=spec.to_json(),
        source_text=submission.source_text,
        source_format=submission.source_format,
        warnings=[stored_words(each) for each in (*submission.warnings, *draft.warnings)],
        demand=draft.demand.to_json(),
        terms=terms_document(spec, draft.demand.devices),
        model_fingerprint=fingerprint_of(spec, owner_id),
        **draft.guest_columns,
        devices=draft.demand.devices,
        submitted_at=now,
        held=spec.held,
        not_before=spec.not_before,
        max_duration_seconds=spec.max_duration,
        cloned_from_id=submission.cloned_from,
        idempotency_key=key.word,
        idempotency_digest=key.digest,
    )


def _sent(submission: Submission) -> object:
    """Return the content of the request, which an idempotency key identifies."""
    if submission.cloned_from is not None:
        return {"cloned_from": submission.cloned_from}
    return submission.document if submission.sent is None else submission.sent


def _job_of_key(viewer: Viewer, key: Key, submission: Submission) -> Job | None:
    if not key.word:
        return None
    jobs = Job.objects.visible_to(viewer)
    earlier = jobs.filter(owner_id=viewer.user_id, idempotency_key=key.word).first()
    if earlier is None:
        return None
    if earlier.cloned_from_id != submission.cloned_from:
        raise used_key(key, sentence("key-used-for-no-copy", job=str(earlier.pk)))
    if not key.is_for(earlier, otherwise=_is_named(earlier, submission.document.get("name"))):
        raise used_key(key, sentence("key-used-for-other-document", job=str(earlier.pk)))
    return earlier


def _is_named(job: Job, name: object) -> bool:
    """Return whether a job, or the job that it is a part of, was submitted with this name."""
    if job.name == name:
        return True
    roles = job.spec["roles"]
    is_part = "part" in job.spec and isinstance(name, str)
    return is_part and job.name in {part_name(str(name), f" {role}-0") for role in roles}


def _too_many(count: int) -> InvalidJobError:
    return InvalidJobError(
        sentence("too-many-jobs", most=MAX_BULK),
        field="",
        value=count,
        remedy=sentence("split-list"),
    )
