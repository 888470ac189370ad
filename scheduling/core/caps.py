"""Caps on what people and virtual clusters may hold, counted while jobs start."""

from collections import defaultdict
from dataclasses import dataclass, field

from scheduling.core.jobspec import JobClass
from scheduling.core.reasons import Reason, ReasonCode
from scheduling.core.values import QueuedJob, VcFacts


@dataclass(slots=True)
class DeviceUse:
    """Devices held, counted as jobs start."""

    by_user: dict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))
    by_member: dict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))
    borrowed_by_vc: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    borrowed_by_tenant: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, *, vc: int, tenant: int, owner: int, devices: int, borrowed: int) -> None:
        """Count ``devices`` more, of which so many are ``borrowed``: held without a guarantee."""
        self.by_user[vc, owner] += devices
        self.by_member[tenant, owner] += devices
        self.borrowed_by_vc[vc] += borrowed
        self.borrowed_by_tenant[tenant] += borrowed

    def capped(self, job: QueuedJob, vc: VcFacts, *, least: int | None = None) -> Reason | None:
        """The reason why one more start of ``job`` would exceed a cap, or None.

        Args:
            job: the job.
            vc: its virtual cluster.
            least: devices with which it could start; None: as many as it asks for.
        """
        borrow_cap = vc.max_opportunistic_devices
        if vc.max_devices_per_user is None and job.user_cap is None and borrow_cap is None:
            return None
        wanted = job.demand.devices if least is None else least
        by_vc = self.by_user[job.vc, job.owner]
        by_tenant = self.by_member[job.tenant, job.owner]
        for cap, held in ((vc.max_devices_per_user, by_vc), (job.user_cap, by_tenant)):
            if cap is not None and held + wanted > cap:
                return _user_cap_reason(job, cap, held, wanted)
        if job.job_class is not JobClass.OPPORTUNISTIC or borrow_cap is None:
            return None
        borrowed = self.borrowed_by_vc[job.vc]
        if borrowed + wanted <= borrow_cap:
            return None
        return Reason(
            code=ReasonCode.OPPORTUNISTIC_CAP,
            text=f"{vc.name} borrows {borrowed} devices and may borrow {borrow_cap}; "
            f"this job wants {wanted} more.",
            unblock=("Ask a cluster admin for a higher cap on opportunistic devices.",),
        )


def _user_cap_reason(job: QueuedJob, cap: int, held: int, wanted: int) -> Reason:
    if wanted > cap:
        return Reason(
            code=ReasonCode.EXCEEDS_USER_MAX,
            text=f"It wants {wanted} devices; the cap of {job.owner_name} is {cap}.",
            unblock=("Ask for a higher cap, or for fewer devices.",),
        )
    return Reason(
        code=ReasonCode.USER_CAP_REACHED,
        text=f"{job.owner_name} holds {held} devices; the cap is {cap}.",
        unblock=("Ask for a higher cap.",),
    )
