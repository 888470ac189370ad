"""Caps of users and virtual clusters, applied to the plans of policies."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from scheduling.core.jobspec import JobClass
from scheduling.core.messages import message
from scheduling.core.policy_interface import Alloc, JobPhase, Part, Plan, PolicyJob, Snapshot
from scheduling.core.reasons import Reason
from scheduling.core.round.gang_sizes import sized
from scheduling.core.values import HoldingJob, JobFacts, QueuedJob, VcFacts
from tessera.reasons import ReasonCode


@dataclass(slots=True)
class DeviceUse:
    """Devices held, counted as jobs start."""

    by_user: dict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))
    by_member: dict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))
    borrowed_by_vc: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    borrowed_by_tenant: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def copy(self) -> "DeviceUse":
        """Return an independent count with equal numbers."""
        return DeviceUse(
            self.by_user.copy(),
            self.by_member.copy(),
            self.borrowed_by_vc.copy(),
            self.borrowed_by_tenant.copy(),
        )

    def add(self, job: QueuedJob | HoldingJob, *, devices: int, borrowed: int) -> None:
        """Add ``devices``, of which ``borrowed`` are outside a guarantee."""
        self.by_user[job.vc, job.owner] += devices
        self.by_member[job.tenant, job.owner] += devices
        self.borrowed_by_vc[job.vc] += borrowed
        self.borrowed_by_tenant[job.tenant] += borrowed

    def left(self, job: QueuedJob | HoldingJob, vc: VcFacts) -> int | None:
        """Return the devices that caps leave for ``job``, possibly negative; None without caps."""
        found = [cap - held for cap, held in self._of_owner(job, vc)]
        if _borrows(job) and vc.max_opportunistic_devices is not None:
            found.append(vc.max_opportunistic_devices - self.borrowed_by_vc[job.vc])
        return min(found, default=None)

    def capped(self, job: QueuedJob, vc: VcFacts, *, least: int | None = None) -> Reason | None:
        """Return the reason why one more start of ``job`` would exceed a cap, or None.

        Args:
            job: the job.
            vc: its virtual cluster.
            least: minimum number of devices to start; None for the requested number.
        """
        borrow_cap = vc.max_opportunistic_devices
        if vc.max_devices_per_user is None and job.user_cap is None and borrow_cap is None:
            return None
        wanted = job.demand.devices if least is None else least
        for cap, held in self._of_owner(job, vc):
            if held + wanted > cap:
                return _user_cap_reason(job, cap, held, wanted)
        if not _borrows(job) or borrow_cap is None:
            return None
        borrowed = self.borrowed_by_vc[job.vc]
        if borrowed + wanted <= borrow_cap:
            return None
        return Reason(
            code=ReasonCode.OPPORTUNISTIC_CAP,
            message=message(
                "borrow-cap", name=vc.name, borrowed=borrowed, cap=borrow_cap, wanted=wanted
            ),
            unblock=(message("ask-higher-borrow-cap"),),
        )

    def _of_owner(self, job: QueuedJob | HoldingJob, vc: VcFacts) -> Iterator[tuple[int, int]]:
        """Yield each cap on a job's owner, with the owner's devices under it."""
        if vc.max_devices_per_user is not None:
            yield vc.max_devices_per_user, self.by_user[job.vc, job.owner]
        if job.user_cap is not None:
            yield job.user_cap, self.by_member[job.tenant, job.owner]


def cut_down(job: QueuedJob, known: JobFacts, before: QueuedJob, left: int) -> QueuedJob:
    """Shrink ``job`` to its largest size within the caps, otherwise to its smallest.

    Gangs of several members (roles, or a mix of types) keep the size from the policy.

    Args:
        job: the job with the size and types from its policy.
        known: facts of the job.
        before: the waiting job, before the policy's resizing.
        left: devices that the caps leave.
    """
    scale = known.terms.scale
    if scale is None or len(job.demand.members) != 1:
        return job
    size = scale.largest(min(left, job.demand.devices)) or scale.smallest or job.demand.devices
    (member,) = job.demand.members
    kind = member.device_types[0] if len(member.device_types) == 1 else None
    demand = sized(known.asked or before.demand, Alloc(parts=(Part(n=size, type=kind),)))
    return job if demand is None else replace(job, demand=demand)


def grown_within_caps(
    view: Snapshot,
    plan: Plan,
    books: DeviceUse,
    holding: Mapping[int, HoldingJob],
    vc: VcFacts,
) -> Plan:
    """Remove growth of running jobs beyond a cap from the plan, since such jobs would leave and
    wait.

    Args:
        view: the policy's input.
        plan: the policy's plan.
        books: devices in use before any start; growth that remains in the plan is added to it,
            since caps on members count over all virtual clusters of a tenant.
        holding: running jobs, by id.
        vc: virtual cluster of the plan.
    """
    growing = [job for job in view.jobs if _growth(job, plan) > 0]
    if plan.offer or not growing:
        return plan
    allocs = dict(plan.allocs)
    for job in growing:
        one, held = holding.get(job.id), job.alloc
        if one is None:  # on the device of another job: caps count when it starts at its new size
            continue
        left = books.left(one, vc)
        if held is None or left is None:
            continue
        allocs[job.id] = _within(job, allocs[job.id], held, held.devices + left)
        more = allocs[job.id].devices - held.devices
        books.add(one, devices=more, borrowed=more if _borrows(one) else 0)
    return replace(plan, allocs=allocs)


def _growth(job: PolicyJob, plan: Plan) -> int:
    """Return the number of devices by which a plan grows a running job."""
    alloc = plan.allocs.get(job.id)
    if job.phase is not JobPhase.RUNNING or job.alloc is None or alloc is None:
        return 0
    return alloc.devices - job.alloc.devices


def _within(job: PolicyJob, alloc: Alloc, held: Alloc, most: int) -> Alloc:
    """Reduce ``alloc`` to the cap if it exceeds the current allocation, else return the latter."""
    cut = job.cut(alloc, most)
    return cut if cut is not None and cut.devices > held.devices else held


def _borrows(job: QueuedJob | HoldingJob) -> bool:
    return job.job_class is JobClass.OPPORTUNISTIC


def _user_cap_reason(job: QueuedJob, cap: int, held: int, wanted: int) -> Reason:
    if wanted > cap:
        return Reason(
            code=ReasonCode.EXCEEDS_USER_MAX,
            message=message("user-max", name=job.owner_name, cap=cap, wanted=wanted),
            unblock=(message("ask-higher-limit-or-fewer"),),
        )
    return Reason(
        code=ReasonCode.USER_CAP_REACHED,
        message=message("user-cap", name=job.owner_name, held=held, cap=cap, wanted=wanted),
        unblock=(message("ask-higher-limit"),),
    )
