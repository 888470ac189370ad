"""Amendments of queued jobs, which preserve ID, queue position and secrets; hold and release."""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import BigIntegerField, Case, F, Q, Value, When

from scheduling.clusters.models import VcLimit
from scheduling.common.on_commit import request_round_on_commit
from scheduling.core.jobspec import InvalidJobSpecError, JobClass
from scheduling.core.jobspec.amending import AmendError, amended, version_of
from scheduling.core.jobspec.parsing import parse_stored
from scheduling.core.lifecycle import JobState
from scheduling.core.messages import sentence
from scheduling.core.round.declared_terms import terms_document
from scheduling.core.round.parallel_plans import fingerprint_of
from scheduling.estimates.models import StartEstimate
from scheduling.jobs.models import Job, JobDependency
from scheduling.jobs.queries.submit_context import SubmitContext
from scheduling.jobs.services.lifecycle import Note, record_job_event
from scheduling.jobs.services.ownership import require_own
from scheduling.jobs.validation import InvalidJobError, ValidatedJob, check_spec, from_spec_error
from tenants.audit import record
from tenants.errors import ConflictError, DomainError, ForbiddenError, StaleEditError
from tenants.roles import Permission
from tenants.viewers import Viewer


def hold_job(*, job: Job, viewer: Viewer) -> bool:
    """Hold a queued job; return False if it is not queued, or has an equal or stronger hold.

    A hold by the owner replaces the hold of the specification or the sweep. A hold by a lead or an
    admin replaces the hold of the owner.

    Raises:
        ForbiddenError: the viewer may see the job but not act for its owner.
    """
    require_own(job=job, viewer=viewer)
    with transaction.atomic():
        kept = (
            Job.objects.unscoped()
            .filter(weaker_holds(job, viewer), pk=job.pk, state=JobState.QUEUED)
            .update(held=True, held_by=viewer.user_id)
        )
        if kept:
            _record(job, viewer, "job.hold", before=job.held, after=True)
    return bool(kept)


def release_hold(*, job: Job, viewer: Viewer) -> bool:
    """Release a held job, so that rounds try it again; return False if it was not held.

    The owner may release their own hold and that of the specification. The hold of another person
    may be released by that person, and by users who may act for all tenant members.

    Raises:
        ForbiddenError: another user owns or holds the job.
    """
    require_own(job=job, viewer=viewer)
    with transaction.atomic():
        held = Job.objects.unscoped().filter(pk=job.pk, held=True, state=JobState.QUEUED)
        freed = held.filter(_own_holds(job, viewer)).update(held=False, held_by=None)
        if freed:
            _record(job, viewer, "job.release", before=True, after=False)
            request_round_on_commit("release")
        elif held.exists():
            raise _held_by_another(job)
    return bool(freed)


def require_release(*, job: Job, viewer: Viewer) -> None:
    """Check that the viewer may release the job, or that the job is not held.

    Raises:
        ForbiddenError: another user holds the job.
    """
    if not Job.objects.unscoped().filter(releasable(job, viewer), pk=job.pk).exists():
        raise _held_by_another(job)


def releasable(job: Job, viewer: Viewer) -> Q:
    """Return a filter for jobs without a hold, and for holds that the viewer may release."""
    return Q(held=False) | _own_holds(job, viewer)


def weaker_holds(job: Job, viewer: Viewer) -> Q:
    """Return a filter for jobs without a hold, and for holds that the viewer replaces."""
    weaker = Q(held=False) | Q(held_by=None)
    return weaker if viewer.user_id == job.owner_id else weaker | Q(held_by=job.owner_id)


def _own_holds(job: Job, viewer: Viewer) -> Q:
    """Return a filter for the holds of a job that the viewer may release."""
    if viewer.can(Permission.STOP_ANY_JOB, job.tenant_id):
        return Q(held=True)
    return Q(held_by=None) | Q(held_by=viewer.user_id)


def _held_by_another(job: Job) -> ForbiddenError:
    return ForbiddenError(
        sentence("held-by-lead", pk=job.pk),
        field="held",
        value=True,
        remedy=sentence("ask-lead-to-release"),
    )


def _record(job: Job, viewer: Viewer, action: str, *, before: bool, after: bool) -> None:
    record(
        actor=viewer,
        action=action,
        obj=job,
        before={"held": before},
        after={"held": after},
        tenant=job.tenant_id,
    )


MOST_CHANGES = 64


def amend_job(
    *,
    job: Job,
    changes: Mapping[str, Any],
    viewer: Viewer,
    submit_context: SubmitContext,
    now: datetime,
    seen: str = "",
) -> Job:
    """Change fields of a queued job's specification.

    Args:
        job: the job to change.
        changes: new values by path in the specification; None removes a field.
        viewer: the owner, or a user with the right to stop the job.
        submit_context: the submit context.
        now: the current time.
        seen: ``version_of`` the specification as the viewer read it; empty skips the check.

    Raises:
        InvalidJobError: the changed job is not valid.
        StaleEditError: the specification has changed since the viewer read it.
        ConflictError: the job is not queued any more, or was changed concurrently.
        ForbiddenError: the job belongs to another user.
    """
    require_own(job=job, viewer=viewer)
    if seen and seen != version_of(job.spec):
        raise StaleEditError.of("job", None)
    draft = amended_draft(job=job, changes=changes, viewer=viewer, submit_context=submit_context)
    releases = "held" in changes and not draft.spec.held
    if releases:
        require_release(job=job, viewer=viewer)
    before = {path: _value(job.spec, path) for path in changes}
    with transaction.atomic():
        waiting = (
            Job.objects.unscoped()
            .queued()
            .filter(pk=job.pk, attempts_made=job.attempts_made, spec=job.spec)
            # A lead may have held the job since the check above.
            .filter(releasable(job, viewer) if releases else Q())
        )
        if not waiting.update(**_columns(job, draft, changes, viewer)):
            raise _moved(job, seen)
        if "after" in changes:
            JobDependency.objects.filter(job_id=job.pk).exclude(after__in=draft.after).delete()
        StartEstimate.objects.filter(pk=job.pk).delete()
        _write_down(job, before, changes, viewer, now)
        request_round_on_commit("amend")
    job.refresh_from_db()
    return job


def _write_down(
    job: Job,
    before: Mapping[str, Any],
    changes: Mapping[str, Any],
    viewer: Viewer,
    now: datetime,
) -> None:
    """Record the change in the job's events and in the audit."""
    words = ", ".join(f"{path}: {_word(value)}" for path, value in changes.items())
    text = sentence("changed-by", username=viewer.username, words=words)
    record_job_event(job_id=job.pk, kind="amend", state=job.state, now=now, note=Note(text=text))
    record(
        actor=viewer,
        action="job.amend",
        obj=job,
        before=before,
        after=dict(changes),
        tenant=job.tenant_id,
    )


def amended_draft(
    *, job: Job, changes: Mapping[str, Any], viewer: Viewer, submit_context: SubmitContext
) -> ValidatedJob:
    """Return the job with the changes, validated like a submission.

    Raises:
        InvalidJobError: the changed job is not valid.
    """
    if not isinstance(changes, Mapping) or not 0 < len(changes) <= MOST_CHANGES:
        raise InvalidJobError(
            sentence("number-of-changes", most=MOST_CHANGES),
            field="changes",
            remedy=sentence("send-changes"),
        )
    try:
        spec = parse_stored(amended(job.spec, changes), ignores_unknown=False)
    except AmendError as error:
        raise InvalidJobError(
            str(error), field=f"changes.{error.path}", remedy=sentence("clone-to-change-more")
        ) from None
    except InvalidJobSpecError as error:
        raise InvalidJobError(errors=[from_spec_error(e) for e in error.errors]) from None
    draft = check_spec(spec=spec, viewer=viewer, submit_context=submit_context)
    if draft.virtual_cluster.tenant_id != job.tenant_id:
        raise InvalidJobError(
            sentence("tenant-is-fixed"),
            field="changes.virtual_cluster",
            value=draft.virtual_cluster.name,
            remedy=sentence("clone-into-tenant"),
        )
    _check_owner_limit(job, draft)
    if not set(draft.after) <= set(job.spec.get("after") or ()):
        # Dependencies between existing jobs could form a cycle.
        raise InvalidJobError(
            sentence("only-fewer-dependencies"),
            field="changes.after",
            value=list(draft.after),
            remedy=sentence("clone-with-dependencies"),
        )
    return draft


def _check_owner_limit(job: Job, draft: ValidatedJob) -> None:
    """Check that the owner may submit to the new virtual cluster of the job."""
    limits = VcLimit.objects.filter(
        membership__user_id=job.owner_id, membership__tenant_id=job.tenant_id
    ).values_list("virtual_cluster_id", flat=True)
    allowed = set(limits)
    if allowed and draft.virtual_cluster.pk not in allowed:
        raise InvalidJobError(
            sentence("owner-limited-to-others"),
            field="changes.virtual_cluster",
            value=draft.virtual_cluster.name,
            remedy=sentence("use-cluster-of-owner"),
        )


def _moved(job: Job, seen: str) -> DomainError:
    """Return the error for a job that was changed after the check."""
    if Job.objects.unscoped().queued().filter(pk=job.pk).exclude(spec=job.spec).exists():
        if seen:
            return StaleEditError.of("job", None)
        return ConflictError(
            sentence("job-changed-meanwhile", pk=job.pk),
            field="changes",
            remedy=sentence("reload-and-change"),
        )
    return ConflictError(
        sentence("job-not-waiting", pk=job.pk),
        field="state",
        value=job.state,
        remedy=sentence("clone-with-changes"),
    )


def _columns(
    job: Job, draft: ValidatedJob, changes: Collection[str], viewer: Viewer
) -> dict[str, Any]:
    spec = draft.spec
    # A hold or release does not change the specification.
    hold: dict[str, Any] = {}
    if "held" in changes:
        hold = {"held": spec.held, "held_by": _holder(job, viewer) if spec.held else None}
    is_free = draft.job_class is JobClass.OPPORTUNISTIC
    return {
        "virtual_cluster": draft.virtual_cluster,
        "job_class": draft.job_class.value,
        "priority": -1 if is_free else draft.priority,
        "spec": spec.to_json(),
        "amendments": F("amendments") + 1,
        "demand": draft.demand.to_json(),
        "terms": terms_document(spec, draft.demand.devices),
        "model_fingerprint": fingerprint_of(spec, job.owner_id),
        **draft.guest_columns,
        "devices": draft.demand.devices,
        "note": spec.note,
        "max_duration_seconds": spec.max_duration,
        **hold,
        "not_before": spec.not_before,
        # The reason for the former demand is not valid any more.
        "reason_code": "",
        "reason_text": "",
        "reason": {},
    }


def _holder(job: Job, viewer: Viewer) -> Case:
    """Return an expression for the holder; an owner does not replace a lead's hold."""
    own = When(weaker_holds(job, viewer), then=Value(viewer.user_id))
    return Case(own, default=F("held_by"), output_field=BigIntegerField())


def _value(document: Mapping[str, Any], path: str) -> Any:
    place: Any = document
    for name in path.split("."):
        place = place.get(name) if isinstance(place, Mapping) else None
    return place


def _word(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
