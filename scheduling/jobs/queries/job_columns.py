"""Who may release a held job: its owner takes back what it held, a lead's hold only leads do."""

from typing import Final

from scheduling.core.messages import message
from scheduling.jobs.models import Job
from tenants.roles import Permission
from tenants.viewers import Viewer

ASK_A_LEAD: Final = message("ask-lead-to-release")


def can_release(viewer: Viewer, job: Job) -> bool:
    """Whether a job is held and the viewer may take that back."""
    if not job.held or not viewer.can_stop(job.tenant_id, job.owner_id):
        return False
    is_own = job.held_by_id in (None, viewer.user_id)
    return is_own or viewer.can(Permission.STOP_ANY_JOB, job.tenant_id)


def is_left_to_leads(viewer: Viewer, *, tenant: int, owner: int, holder: int | None) -> bool:
    """Whether only another, a lead, can release a held job; the viewer can do nothing about it.

    Args:
        viewer: who asks.
        tenant: of the job.
        owner: of the job.
        holder: who holds it; None: its owner.
    """
    if holder in (None, owner):
        return False
    return holder != viewer.user_id and not viewer.can(Permission.STOP_ANY_JOB, tenant)


def waits_for_a_lead(viewer: Viewer, job: Job) -> bool:
    """Whether a job is held so that somebody else, a lead, has to release it."""
    return job.held and is_left_to_leads(
        viewer, tenant=job.tenant_id, owner=job.owner_id, holder=job.held_by_id
    )
