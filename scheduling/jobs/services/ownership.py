"""The right to act on a job, and the audit of log reads by cluster admins."""

from scheduling.core.messages import sentence
from scheduling.jobs.models import Job
from tenants.audit import record_once
from tenants.errors import ForbiddenError
from tenants.roles import Permission
from tenants.viewers import Viewer


def require_own(*, job: Job, viewer: Viewer) -> None:
    """Check that the viewer may act on the job.

    Raises:
        ForbiddenError: the viewer may see the job but not act for its owner.
    """
    if not viewer.can_stop(job.tenant_id, job.owner_id):
        raise ForbiddenError(
            sentence("job-of-other", pk=job.pk),
            field="permission",
            value=str(Permission.STOP_ANY_JOB),
            remedy=sentence("ask-owner-lead-tenant"),
        )


def note_log_read(*, viewer: Viewer, job_id: int) -> None:
    """Record that an admin reads another tenant's log, at most once per hour and job."""
    if not viewer.is_cluster_admin:
        return
    job = Job.objects.unscoped().filter(pk=job_id).only("name", "tenant_id").first()
    if job is None or viewer.role_in(job.tenant_id) is not None:
        return
    record_once(
        actor=viewer,
        action="job.read_log",
        object_type="job",
        object_id=job.pk,
        object_name=job.name,
        tenant=job.tenant_id,
    )
