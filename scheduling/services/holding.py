"""Holding a job back: it waits until somebody releases it."""

from django.db import transaction

from scheduling.core.lifecycle import JobState
from scheduling.models import Job
from tenants.audit import record
from tenants.errors import ForbiddenError
from tenants.roles import Permission
from tenants.viewers import Viewer


def hold_job(*, job: Job, viewer: Viewer) -> bool:
    """Keep a queued job out of rounds; False if it is not queued, or held already.

    Raises:
        ForbiddenError: the viewer may see the job but not act for its owner.
    """
    if not viewer.can_stop(job.tenant_id, job.owner_id):
        raise ForbiddenError(
            f"Job {job.pk} is somebody else's.",
            field="permission",
            value=str(Permission.STOP_ANY_JOB),
            remedy="Ask its owner or a lead of the tenant.",
        )
    with transaction.atomic():
        kept = (
            Job.objects.unscoped()
            .filter(pk=job.pk, held=False, state=JobState.QUEUED)
            .update(held=True)
        )
        if kept:
            record(
                actor=viewer,
                action="job.hold",
                obj=job,
                before={"held": False},
                after={"held": True},
                tenant=job.tenant_id,
            )
    return bool(kept)
