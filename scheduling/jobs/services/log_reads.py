"""Reads of logs by cluster admins who are in no tenant of the job: the tenant's leads see them."""

from scheduling.jobs.models import Job
from tenants.audit import record_once
from tenants.viewers import Viewer


def note_log_read(*, viewer: Viewer, job_id: int) -> None:
    """Record that an admin reads the log of another tenant's job, once an hour for each job."""
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
