"""Who may act on a job: its owner, and whoever may act for everybody in the tenant."""

from scheduling.core.messages import sentence
from scheduling.jobs.models import Job
from tenants.errors import ForbiddenError
from tenants.roles import Permission
from tenants.viewers import Viewer


def require_own(*, job: Job, viewer: Viewer) -> None:
    """Go on if the viewer may act on the job, else raise.

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
