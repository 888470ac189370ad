"""Hold and release of queued jobs, by their owner or a lead."""

from django.db import transaction
from django.db.models import Q

from scheduling.common.on_commit import want_round
from scheduling.core.lifecycle import JobState
from scheduling.core.messages import sentence
from scheduling.jobs.models import Job
from scheduling.jobs.services.ownership import require_own
from tenants.audit import record
from tenants.errors import ForbiddenError
from tenants.roles import Permission
from tenants.viewers import Viewer


def hold_job(*, job: Job, viewer: Viewer) -> bool:
    """Hold a queued job; False if it is not queued, or has an equal or stronger hold.

    An owner's hold replaces that of the specification or the sweep; one of a lead or an admin
    replaces that of the owner.

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
    """Release a held job, which joins rounds from now on; False if it was not held.

    The owner releases the own hold and that of the specification. Another person's hold is
    released by that person, or with the right to act for all tenant members.

    Raises:
        ForbiddenError: another user owns or holds the job.
    """
    require_own(job=job, viewer=viewer)
    with transaction.atomic():
        held = Job.objects.unscoped().filter(pk=job.pk, held=True, state=JobState.QUEUED)
        freed = held.filter(_own_holds(job, viewer)).update(held=False, held_by=None)
        if freed:
            _record(job, viewer, "job.release", before=True, after=False)
            want_round("release")
        elif held.exists():
            raise _held_by_another(job)
    return bool(freed)


def require_release(*, job: Job, viewer: Viewer) -> None:
    """Check that the viewer may release the job, or that it is not held.

    Raises:
        ForbiddenError: another user holds it.
    """
    if not Job.objects.unscoped().filter(releasable(job, viewer), pk=job.pk).exists():
        raise _held_by_another(job)


def releasable(job: Job, viewer: Viewer) -> Q:
    """Where the viewer may release the job: nobody holds it, or the hold is theirs."""
    return Q(held=False) | _own_holds(job, viewer)


def weaker_holds(job: Job, viewer: Viewer) -> Q:
    """Where a hold of the viewer's is the one that counts: the job is free, or held by less."""
    weaker = Q(held=False) | Q(held_by=None)
    return weaker if viewer.user_id == job.owner_id else weaker | Q(held_by=job.owner_id)


def _own_holds(job: Job, viewer: Viewer) -> Q:
    """The holds of a job that the viewer may release."""
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
