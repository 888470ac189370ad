"""Explanation of a share: what a tenant borrows at one time, and what limits it.

Idle devices go to tenants by weighted max-min fairness of the borrowed devices
(``round.fairness``). The explanation compares the borrowed devices of a tenant with its fair
share, and assigns one limit to each waiting opportunistic job.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from scheduling.core.explanations.lending import (
    ChainDevices,
    HeldDevices,
    Shortage,
    devices_by_chain,
    held_devices,
    shortages,
)
from scheduling.core.jobspec import Demand, JobClass
from scheduling.core.reasons import Reason
from scheduling.core.round.engine_setup import empty_engine
from scheduling.core.round.fairness import tenant_weights
from scheduling.core.round_result import RoundResult
from scheduling.core.values import ClusterSnapshot, QueuedJob, VcFacts
from tessera.reasons import ReasonCode


class Limit(StrEnum):
    """The reason why a waiting opportunistic job does not borrow devices.

    ``IDLE``, ``WEIGHT`` and ``SHAPE`` concern jobs that were offered idle devices; ``SHAPE`` means
    that enough are idle, but not in cells or on nodes that the job can use. The other jobs compete
    for none.
    """

    IDLE = "idle"
    WEIGHT = "weight"
    SHAPE = "shape"
    QUOTA = "quota"
    ORDER = "order"
    NODES = "nodes"
    GATE = "gate"


COMPETING: Final = frozenset({Limit.IDLE, Limit.WEIGHT, Limit.SHAPE})

_BY_CODE: Final[Mapping[ReasonCode, Limit]] = {
    ReasonCode.EXCEEDS_VC_MAX: Limit.QUOTA,
    ReasonCode.EXCEEDS_USER_MAX: Limit.QUOTA,
    ReasonCode.USER_CAP_REACHED: Limit.QUOTA,
    ReasonCode.OPPORTUNISTIC_CAP: Limit.QUOTA,
    ReasonCode.BEHIND_HIGHER_PRIORITY: Limit.ORDER,
    ReasonCode.HELD_BY_POLICY: Limit.ORDER,
    ReasonCode.RESERVATION: Limit.ORDER,
    ReasonCode.WAITING_VICTIM_CHECKPOINT: Limit.ORDER,
    ReasonCode.DEADLINE_INFEASIBLE: Limit.ORDER,
    ReasonCode.HELD: Limit.GATE,
    ReasonCode.NOT_BEFORE: Limit.GATE,
    ReasonCode.AFTER_JOB: Limit.GATE,
    ReasonCode.BACKOFF_AFTER_FAILURE: Limit.GATE,
    ReasonCode.WAITING_FOR_ROUND: Limit.GATE,
    ReasonCode.SCHEDULER_NOT_RUNNING: Limit.GATE,
    ReasonCode.OPPORTUNISTIC_NO_IDLE: Limit.IDLE,
    ReasonCode.NO_CELL_OF_LEVEL: Limit.IDLE,
    ReasonCode.VC_GUARANTEE_IN_USE: Limit.IDLE,
    ReasonCode.NO_HOST_FOR_GUEST: Limit.IDLE,
    ReasonCode.GUEST_CAP_REACHED: Limit.IDLE,
    ReasonCode.NO_DEVICE_WITH_SHARING_MODE: Limit.IDLE,
}
"""Limits by reason; other reasons concern nodes. ``_offered`` refines ``IDLE``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VcShare:
    """The share of one virtual cluster, in devices.

    Attributes:
        used: guaranteed devices that its jobs hold.
        borrowed: devices that its jobs hold outside the guarantee.
        lent: guaranteed devices that its jobs do not use and opportunistic jobs hold.
        unusable: guaranteed devices that are unhealthy or on cordoned nodes.
        waiting: devices of waiting opportunistic jobs by limit.
        guaranteed_waiting: devices of waiting guaranteed jobs, which never borrow.
    """

    vc: int
    tenant: int
    guaranteed: float
    used: float
    borrowed: float
    lent: float
    unusable: float
    waiting: Mapping[Limit, float]
    guaranteed_waiting: float

    @property
    def limit(self) -> Limit | None:
        """The limit of most waiting devices; None if no job requests more."""
        found = [limit for limit in Limit if self.waiting.get(limit)]
        return max(found, key=lambda limit: self.waiting[limit], default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantShare:
    """The borrowed devices of one tenant against its fair share.

    Attributes:
        weight: guaranteed devices of its virtual clusters, at least 1.
        borrowed: devices that its jobs hold outside guarantees.
        requested: ``borrowed`` and the devices of jobs that were offered idle devices.
        fair: weighted max-min fair part of all borrowable devices, at most ``requested``.
    """

    tenant: int
    weight: float
    borrowed: float
    requested: float
    fair: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sums over all tenants, in devices.

    Attributes:
        idle: healthy devices on open nodes that no job holds.
        unusable: devices that no job holds and none can get.
        weight: sum of the weights of all tenants.
        requested: sum of the requested devices of all tenants.
        fair: sum of the fair shares of all tenants.
    """

    devices: float
    guaranteed: float
    used: float
    borrowed: float
    lent: float
    idle: float
    unusable: float
    weight: float
    requested: float
    fair: float

    @property
    def borrowable(self) -> float:
        """Devices that tenants share by weight: borrowed and idle ones."""
        return self.borrowed + self.idle


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareMoment:
    """The shares of all virtual clusters and tenants at one time, or their means over a span."""

    at: float
    vcs: Mapping[int, VcShare]
    tenants: Mapping[int, TenantShare]
    totals: Totals


def explain_shares(
    snapshot: ClusterSnapshot,
    result: RoundResult | None = None,
    *,
    gone: Collection[int] = frozenset(),
    at: float | None = None,
) -> ShareMoment:
    """Explain the shares after a round.

    Args:
        snapshot: the input of the round.
        result: its decision; None for the state before it.
        gone: jobs that have ended or were withdrawn since the round.
        at: time of the explanation in seconds since the epoch; None for that of the round.
    """
    held = held_devices(snapshot, result, gone)
    engine = empty_engine(snapshot.spec)
    chains = devices_by_chain(snapshot, engine.topology, held)
    shortage = shortages(snapshot, engine, chains)
    borrowed: Counter[int] = Counter()
    of_vc: dict[int, list[HeldDevices]] = defaultdict(list)
    for one in held.values():
        borrowed[one.tenant] += one.borrowed
        of_vc[one.vc].append(one)
    idle: Counter[str] = Counter()
    for name, chain in chains.items():
        idle[engine.topology.chains[name].leaf_type] += chain.idle
    waiting, demanded = _waiting(snapshot, held.keys() | set(gone))
    reasons = result.reasons if result is not None else {}
    limits = {job.id: _limit_of(reasons.get(job.id)) for job in waiting}
    weights = tenant_weights(engine, snapshot.vcs)
    tenants = _fair_shares(waiting, limits, weights, borrowed, idle.total())
    limits.update(_offered(waiting, limits, tenants, idle))
    vcs = {
        vc.id: _vc_share(
            vc,
            of_vc[vc.id],
            shortage[vc.id],
            [(job, limits[job.id]) for job in waiting if job.vc == vc.id],
            demanded[vc.id],
        )
        for vc in sorted(snapshot.vcs, key=lambda vc: vc.id)
    }
    return ShareMoment(
        at=snapshot.now if at is None else at,
        vcs=vcs,
        tenants=tenants,
        totals=_totals(vcs.values(), tenants.values(), chains.values()),
    )


def mean_shares(moments: Sequence[ShareMoment]) -> ShareMoment:
    """Return the mean of several moments as one moment; numbers of devices become fractions.

    A virtual cluster or tenant counts as 0 at times at which it did not exist.

    Raises:
        ValueError: there is no moment.
    """
    if not moments:
        raise ValueError("the mean of no moments")
    n = len(moments)

    def vc_mean(key: int) -> VcShare:
        found = [moment.vcs[key] for moment in moments if key in moment.vcs]
        waiting: dict[Limit, float] = defaultdict(float)
        for one in found:
            for limit, devices in one.waiting.items():
                waiting[limit] += devices / n
        return VcShare(
            vc=key,
            tenant=found[-1].tenant,
            waiting=dict(waiting),
            **{name: sum(getattr(one, name) for one in found) / n for name in _VC_NUMBERS},
        )

    def tenant_mean(key: int) -> TenantShare:
        found = [moment.tenants[key] for moment in moments if key in moment.tenants]
        numbers = {name: sum(getattr(one, name) for one in found) / n for name in _TENANT_NUMBERS}
        return TenantShare(tenant=key, **numbers)

    totals = {
        name: math.fsum(getattr(moment.totals, name) for moment in moments) / n
        for name in _TOTAL_NUMBERS
    }
    return ShareMoment(
        at=moments[-1].at,
        vcs={key: vc_mean(key) for key in sorted({k for m in moments for k in m.vcs})},
        tenants={key: tenant_mean(key) for key in sorted({k for m in moments for k in m.tenants})},
        totals=Totals(**totals),
    )


_VC_NUMBERS: Final = ("guaranteed", "used", "borrowed", "lent", "unusable", "guaranteed_waiting")
_TENANT_NUMBERS: Final = ("weight", "borrowed", "requested", "fair")
_TOTAL_NUMBERS: Final = (
    "devices", "guaranteed", "used", "borrowed", "lent", "idle", "unusable", "weight",
    "requested", "fair",
)  # fmt: skip


def water_level(demands: Mapping[int, float], weights: Mapping[int, float], pool: float) -> float:
    """Return the share for each unit of weight at which weighted max-min shares fill the pool.

    The fair share of a key is ``min(demand, level * weight)``; the level is infinite if the pool
    is not smaller than all demands together.
    """
    left = pool
    open_weight = sum(weights[key] for key in demands)
    for key in sorted(demands, key=lambda key: demands[key] / weights[key]):
        if demands[key] * open_weight > left * weights[key]:
            return left / open_weight
        left -= demands[key]
        open_weight -= weights[key]
    return math.inf


def _waiting(
    snapshot: ClusterSnapshot, gone: Collection[int]
) -> tuple[list[QueuedJob], Counter[int]]:
    """Return waiting opportunistic jobs, and devices of guaranteed ones by virtual cluster."""
    opportunistic: list[QueuedJob] = []
    guaranteed: Counter[int] = Counter()
    for job in snapshot.queued:
        if job.id in gone:
            continue
        if job.job_class is JobClass.OPPORTUNISTIC:
            opportunistic.append(job)
        else:
            guaranteed[job.vc] += job.demand.devices
    return opportunistic, guaranteed


def _limit_of(reason: Reason | None) -> Limit:
    if reason is None:
        return Limit.GATE
    return _BY_CODE.get(reason.code, Limit.NODES)


def _fair_shares(
    waiting: Iterable[QueuedJob],
    limits: Mapping[int, Limit],
    weights: Mapping[int, int],
    borrowed: Mapping[int, int],
    idle: int,
) -> dict[int, TenantShare]:
    """Return the share of each tenant; jobs with ``Limit.IDLE`` were offered idle devices."""
    requested: dict[int, float] = {tenant: borrowed.get(tenant, 0) for tenant in weights}
    for job in waiting:
        if limits[job.id] is Limit.IDLE:
            requested[job.tenant] += job.demand.devices
    pool = idle + sum(borrowed.get(tenant, 0) for tenant in weights)
    level = water_level(requested, weights, pool)
    return {
        tenant: TenantShare(
            tenant=tenant,
            weight=weight,
            borrowed=borrowed.get(tenant, 0),
            requested=requested[tenant],
            fair=min(requested[tenant], level * weight),
        )
        for tenant, weight in weights.items()
    }


def _offered(
    waiting: Iterable[QueuedJob],
    limits: Mapping[int, Limit],
    tenants: Mapping[int, TenantShare],
    idle: Mapping[str, int],
) -> dict[int, Limit]:
    """Return the limits of jobs that were offered idle devices.

    If enough devices are idle, only their position prevents the start. Otherwise the weight is
    the limit of a job beyond the fair share that all borrowable devices together would hold.
    """
    pool = sum(share.borrowed for share in tenants.values()) + sum(idle.values())
    level = {tenant: share.borrowed for tenant, share in tenants.items()}
    found: dict[int, Limit] = {}
    for job in waiting:
        if limits[job.id] is not Limit.IDLE:
            continue
        level[job.tenant] += job.demand.devices
        if _are_idle(job.demand, idle):
            found[job.id] = Limit.SHAPE
        elif tenants[job.tenant].fair < level[job.tenant] <= pool:
            found[job.id] = Limit.WEIGHT
    return found


def _are_idle(demand: Demand, idle: Mapping[str, int]) -> bool:
    """Return whether enough devices of the accepted types are idle, anywhere."""
    needed: Counter[tuple[str, ...]] = Counter()
    for member in demand.members:
        needed[member.device_types] += member.count * member.devices
    return all(
        devices <= sum(idle.get(kind, 0) for kind in (kinds or idle))
        for kinds, devices in needed.items()
    )


def _vc_share(
    vc: VcFacts,
    held: Iterable[HeldDevices],
    shortage: Shortage,
    waiting: Iterable[tuple[QueuedJob, Limit]],
    guaranteed_waiting: int,
) -> VcShare:
    by_limit: Counter[Limit] = Counter()
    for job, limit in waiting:
        by_limit[limit] += job.demand.devices
    used = borrowed = 0
    for one in held:
        borrowed += one.borrowed
        used += len(one.leaves) - one.borrowed
    return VcShare(
        vc=vc.id,
        tenant=vc.tenant,
        guaranteed=shortage.guaranteed,
        used=used,
        borrowed=borrowed,
        lent=shortage.lent,
        unusable=shortage.unusable,
        waiting=dict(by_limit),
        guaranteed_waiting=guaranteed_waiting,
    )


def _totals(
    vcs: Collection[VcShare], tenants: Collection[TenantShare], chains: Collection[ChainDevices]
) -> Totals:
    return Totals(
        devices=sum(chain.total for chain in chains),
        guaranteed=sum(vc.guaranteed for vc in vcs),
        used=sum(vc.used for vc in vcs),
        borrowed=sum(vc.borrowed for vc in vcs),
        lent=sum(vc.lent for vc in vcs),
        idle=sum(chain.idle for chain in chains),
        unusable=sum(chain.out + chain.cordoned for chain in chains),
        weight=sum(share.weight for share in tenants),
        requested=sum(share.requested for share in tenants),
        fair=math.fsum(share.fair for share in tenants),
    )
