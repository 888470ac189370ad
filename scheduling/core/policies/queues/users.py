"""User limits within a queue: those of Hadoop YARN's capacity scheduler.

Each active user of a queue may use an equal part of its capacity, with at least
``minimum-user-limit-percent`` of it; and at most ``user-limit-factor`` times the queue's
guarantee, however idle the rest is (Hadoop's documentation, "Capacity Scheduler", queue
properties). A queue's capacity is its guarantee, or its use if that is more.
"""

from collections import defaultdict
from typing import Final

from scheduling.core.policies.engines.room import borrows
from scheduling.core.policy_interface import JobPhase, PolicyJob, Snapshot

ALL: Final = 100
#: A person without a tenant known to the view is a user of the whole pool.
_POOL: Final = -1
_SLACK: Final = 1e-9


class UserLimits:
    """Each person's devices in each queue, and the limit.

    Borrowing is neither limited nor counted: it uses only idle devices.

    Args:
        snapshot: the private view.
        percent: lower bound of a user's limit in percent of the queue; 100: no sharing.
        factor: maximum of one user, in queue guarantees; 0: no bound.
    """

    def __init__(self, snapshot: Snapshot, percent: int, factor: float) -> None:
        self._percent, self._factor = percent, factor
        self._guarantees = _guarantees(snapshot)
        users: dict[int, set[int]] = defaultdict(set)
        for job in snapshot.jobs:
            if job.phase is not JobPhase.LEAVING and not borrows(job):
                users[self._queue(job)].add(job.owner)
        self._active = {queue: len(owners) for queue, owners in users.items()}
        self._used: dict[int, int] = defaultdict(int)
        self._held: dict[tuple[int, int], int] = defaultdict(int)
        self.refused: set[int] = set()

    def take(self, job: PolicyJob, devices: int) -> None:
        """Count the devices of a job."""
        if not borrows(job):
            queue = self._queue(job)
            self._used[queue] += devices
            self._held[queue, job.owner] += devices

    def allows(self, job: PolicyJob, devices: int) -> bool:
        """Whether its owner may have n more devices; an owner without any may start one gang.

        Without that a gang above the limit would never start.
        """
        if borrows(job):
            return True
        queue = self._queue(job)
        held = self._held[queue, job.owner]
        if held == 0 or held + devices <= self.limit(queue, devices) + _SLACK:
            return True
        self.refused.add(job.id)
        return False

    def limit(self, queue: int, devices: int) -> float:
        """The most that one user may hold of a queue which is to use ``devices`` more."""
        guarantee = self._guarantees[queue]
        capacity = max(guarantee, float(self._used[queue] + devices))
        part = max(1.0 / max(1, self._active.get(queue, 1)), self._percent / ALL)
        most = part * capacity
        return min(most, self._factor * guarantee) if self._factor > 0.0 else most

    def _queue(self, job: PolicyJob) -> int:
        return job.terms.tenant if job.terms.tenant in self._guarantees else _POOL


def _guarantees(snapshot: Snapshot) -> dict[int, float]:
    """Guaranteed devices by queue: as promised, else by weight."""
    devices = float(snapshot.pool.devices)
    weights = sum(tenant.weight for tenant in snapshot.tenants)
    found = {_POOL: devices}
    for tenant in snapshot.tenants:
        by_weight = devices * tenant.weight / weights if weights > 0.0 else 0.0
        found[tenant.id] = by_weight if tenant.guarantee is None else tenant.guarantee
    return found
