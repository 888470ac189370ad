"""Progressive filling: the smallest share is served next, down a tree of accounts.

Dominant resource fairness (Ghodsi et al., NSDI '11, section 4.2) fills flat accounts in this way.
Queues with guarantees use the same walk on a tree with another measure of a share.
"""

import heapq
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from scheduling.core.policies.engines.room import FreeDevices, borrows, is_pinned, present
from scheduling.core.policy_interface import Alloc, PolicyJob, Snapshot, Tenant

_ROOT: Final = -1
_FIRST_OWNER: Final = -2


@dataclass(slots=True, kw_only=True)
class FairAccount:
    """Account of a tenant, or of an owner if no tenants are known.

    Attributes:
        id: ID of the tenant; below -1 for owners, -1 for the root.
        weight: weight of its share, above 0.
        ceiling: maximum number of devices.
        held: devices by type.
        waiting: jobs of the account, in the order of service.
    """

    id: int
    weight: float = 1.0
    ceiling: float = float("inf")
    held: dict[str, int] = field(default_factory=dict)
    waiting: deque[PolicyJob] = field(default_factory=deque)
    children: list["FairAccount"] = field(default_factory=list)
    heap: list[tuple[float, int, "FairAccount"]] = field(default_factory=list)

    @property
    def devices(self) -> int:
        """All devices that the account holds."""
        return sum(self.held.values())


Share = Callable[[FairAccount], float]


class FillBounds(Protocol):
    """Bounds on a job besides its account's limit and the free devices."""

    def take(self, job: PolicyJob, devices: int) -> None:
        """Count the devices of a job."""
        ...

    def allows(self, job: PolicyJob, devices: int) -> bool:
        """Return whether a job may have a number of devices; otherwise it is skipped."""
        ...


def account_of(job: PolicyJob, tenants: Container[int]) -> int:
    """Return the account of a job: its tenant's if the view has that one, else its owner's."""
    return job.terms.tenant if job.terms.tenant in tenants else _FIRST_OWNER - job.owner


def tree(
    snapshot: Snapshot, *, weigh: Callable[[Tenant], float] = lambda tenant: tenant.weight
) -> tuple[FairAccount, dict[int, FairAccount]]:
    """Build the root and the accounts of a view by ID; owners without a tenant weigh 1."""
    known = {tenant.id: tenant for tenant in snapshot.tenants}
    accounts = {
        tenant.id: FairAccount(
            id=tenant.id,
            weight=max(1e-9, weigh(tenant)),
            ceiling=float("inf") if tenant.ceiling is None else tenant.ceiling,
        )
        for tenant in snapshot.tenants
    }
    for job in snapshot.jobs:
        owner = account_of(job, known)
        accounts.setdefault(owner, FairAccount(id=owner))
    root = FairAccount(id=_ROOT)
    for number, account in sorted(accounts.items()):
        tenant = known.get(number)
        parent = accounts.get(tenant.parent) if tenant and tenant.parent is not None else None
        (parent or root).children.append(account)
    return root, accounts


def fill(
    snapshot: Snapshot,
    *,
    root: FairAccount,
    accounts: Mapping[int, FairAccount],
    share: Share,
    order: Callable[[PolicyJob], tuple[object, ...]],
    keep: bool,
    strict: bool = False,
    limits: FillBounds | None = None,
) -> dict[int, Alloc]:
    """Serve the account with the smallest share repeatedly until nothing fits.

    Args:
        snapshot: the private view.
        root: root of the tree.
        accounts: all accounts by id.
        share: share of an account; it must rise with its devices.
        order: sort key of an account's jobs.
        keep: whether running jobs retain their devices; otherwise all start without devices.
        strict: whether an account whose first job does not fit gets no more devices in this round.
        limits: further bounds for jobs.

    Returns:
        Allocations by job. Jobs that borrow are served after all others, by the same rule.
    """
    tenants = {tenant.id for tenant in snapshot.tenants}
    jobs = present(snapshot)
    room = FreeDevices(snapshot)
    parents = _parents(root)
    allocs: dict[int, Alloc] = {}

    def give(account: FairAccount, job: PolicyJob, alloc: Alloc) -> None:
        room.take(job, alloc)
        allocs[job.id] = alloc
        if limits is not None:
            limits.take(job, alloc.devices)
        for above in _path(account, parents):
            for part in alloc.parts:
                kind = part.type or ""
                above.held[kind] = above.held.get(kind, 0) + part.n

    for job in jobs:
        kept = job.alloc if is_pinned(job) or (keep and job.alloc is not None) else None
        if kept is not None:
            give(accounts[account_of(job, tenants)], job, kept)
    for borrowing in (False, True):
        for job in sorted(jobs, key=lambda job: (*order(job), job.id)):
            if job.id not in allocs and borrows(job) is borrowing:
                accounts[account_of(job, tenants)].waiting.append(job)
        _rebuild(root, share)
        _serve(root, share=share, room=room, give=give, strict=strict, limits=limits)
    return allocs


def _serve(
    root: FairAccount,
    *,
    share: Share,
    room: FreeDevices,
    give: Callable[[FairAccount, PolicyJob, Alloc], None],
    strict: bool,
    limits: FillBounds | None,
) -> None:
    while root.heap:
        path = [root]
        while path[-1].heap:
            path.append(heapq.heappop(path[-1].heap)[2])
        leaf = path[-1]
        job = leaf.waiting.popleft()
        is_allowed = limits is None or limits.allows(job, job.gang)
        alloc = room.fit(job) if is_allowed and _below_ceilings(path, job.gang) else None
        if alloc is not None:
            give(leaf, job, alloc)
        elif strict and is_allowed:
            leaf.waiting.clear()
        # From the leaf up, so that every parent knows whether its child still waits.
        for above, account in zip(reversed(path[:-1]), reversed(path[1:]), strict=True):
            if account.heap or account.waiting:
                heapq.heappush(above.heap, (share(account), account.id, account))


def _below_ceilings(path: Sequence[FairAccount], devices: int) -> bool:
    return all(account.devices + devices <= account.ceiling for account in path)


def _rebuild(account: FairAccount, share: Share) -> bool:
    """Push the children with waiting jobs on their heaps; return whether there are any."""
    waits = bool(account.waiting)
    account.heap = []
    for child in account.children:
        if _rebuild(child, share):
            heapq.heappush(account.heap, (share(child), child.id, child))
            waits = True
    if account.waiting and account.children:
        # A tenant with tenants below it may have jobs of its own: they wait in a sibling leaf.
        leaf = FairAccount(id=account.id, weight=account.weight, waiting=account.waiting)
        leaf.held = account.held
        account.waiting = deque()
        heapq.heappush(account.heap, (share(leaf), leaf.id, leaf))
    return waits


def _parents(root: FairAccount) -> dict[int, FairAccount]:
    found: dict[int, FairAccount] = {}
    stack = [root]
    while stack:
        account = stack.pop()
        for child in account.children:
            found[child.id] = account
            stack.append(child)
    return found


def _path(account: FairAccount, parents: Mapping[int, FairAccount]) -> Iterable[FairAccount]:
    """Yield an account and all its ancestors."""
    yield account
    while account.id in parents:
        account = parents[account.id]
        yield account
