"""Dominant resource fairness, and weighted fair shares with decayed usage.

DRF: Ghodsi et al., NSDI '11, section 4, with the device types as resources. Fair shares with
decayed usage are those of batch systems (Kay and Lauder, CACM 1988): a tenant's recent usage
counts against it, so that a tenant that has just released a large gang is not immediately first
again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import log
from typing import Any, ClassVar, Final

from scheduling.core.messages import message, sentence
from scheduling.core.policies.base import Need
from scheduling.core.policies.engines.filling import FairAccount, account_of, fill, tree
from scheduling.core.policies.engines.greedy import meant
from scheduling.core.policies.engines.room import borrows, present
from scheduling.core.policies.parameters import parameter, priced, prices_parameter
from scheduling.core.policy_interface import JobPhase, Plan, PolicyJob, Snapshot

_WAITS: Final = sentence(message("share-is-used"))


@dataclass(frozen=True, slots=True, kw_only=True)
class DominantShare:
    """Serves the tenant with the smallest dominant share first.

    Attributes:
        preempt: whether shares are filled from zero in every round, ignoring running jobs.
    """

    preempt: bool = parameter(False, sentence("param-preempt-tenants"))

    name: ClassVar[str] = "drf"
    aliases: ClassVar[tuple[str, ...]] = ()
    summary: ClassVar[str] = "dominant resource fairness, device types as resources"
    needs: ClassVar[frozenset[Need]] = frozenset()
    stateless: ClassVar[bool] = True

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Fill progressively by dominant share."""
        room = {kind: snapshot.pool.room(kind) for kind in _kinds(snapshot)}

        def share(account: FairAccount) -> float:
            parts = (n / max(1, room.get(kind, 0)) for kind, n in account.held.items())
            return max(parts, default=0.0) / account.weight

        return _filled(snapshot, share, preempt=self.preempt), state


@dataclass(frozen=True, slots=True, kw_only=True)
class FairShare:
    """Serves the tenant with the lowest past and current usage relative to its weight first.

    Attributes:
        half_life: seconds after which received device-time counts half.
        preempt: as for ``DominantShare``.
        prices: weights of devices.
    """

    half_life: float = parameter(
        86_400.0, sentence("param-half-life"), low=60.0, high=31_536_000.0
    )
    preempt: bool = parameter(False, sentence("param-preempt-tenants"))
    prices: str = prices_parameter()

    name: ClassVar[str] = "fair"
    aliases: ClassVar[tuple[str, ...]] = ("fair-share",)
    summary: ClassVar[str] = "weighted fair shares with decayed usage"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.HISTORY})
    stateless: ClassVar[bool] = False

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Fill progressively by the sum of usage and current devices.

        A tenant with constantly ``n`` devices has a decayed usage of ``n * half_life / ln 2``, so
        usage and present devices are added as devices.
        """
        snapshot = priced(snapshot, self.prices)
        usage = self._usage(snapshot, state)
        prices = {kind: info.price for kind, info in snapshot.pool.types.items()}

        def share(account: FairAccount) -> float:
            holds = sum(n * prices.get(kind, 1.0) for kind, n in account.held.items())
            had = usage.get(account.id, 0.0) * log(2) / self.half_life
            return (had + holds) / account.weight

        after = {
            "at": snapshot.now,
            "usage": {str(number): usage[number] for number in sorted(usage)},
        }
        return _filled(snapshot, share, preempt=self.preempt), after

    def _usage(self, snapshot: Snapshot, state: Mapping[str, Any]) -> dict[int, float]:
        """Return the device-seconds by account, decayed up to now."""
        tenants = {tenant.id for tenant in snapshot.tenants}
        prices = {kind: info.price for kind, info in snapshot.pool.types.items()}
        before = float(state.get("at", snapshot.now))
        elapsed = max(0.0, snapshot.now - before)
        fading = 0.5 ** (elapsed / self.half_life)
        usage = {tenant.id: tenant.usage for tenant in snapshot.tenants if tenant.usage > 0}
        for number, value in state.get("usage", {}).items():
            usage[int(number)] = float(value) * fading
        for job in sorted(snapshot.jobs, key=lambda job: job.id):
            if job.phase is JobPhase.QUEUED or job.alloc is None:
                continue
            seconds = max(0.0, min(elapsed, snapshot.now - job.since))
            cost = sum(part.n * prices.get(part.type or "", 1.0) for part in job.alloc.parts)
            number = account_of(job, tenants)
            usage[number] = usage.get(number, 0.0) + seconds * cost
        # Less than a device-second is negligible from now on.
        return {number: value for number, value in usage.items() if value >= 1.0}


def in_turn(job: PolicyJob) -> tuple[Any, ...]:
    """Order within an account: priority, then running jobs, then arrival."""
    return (-job.priority, job.phase is not JobPhase.RUNNING, job.submitted)


def by_arrival(job: PolicyJob) -> tuple[Any, ...]:
    """Order within an account with preemptible allocations: priority, then arrival."""
    return (-job.priority, job.submitted)


def _kinds(snapshot: Snapshot) -> list[str]:
    return sorted({*snapshot.pool.capacity, *snapshot.pool.borrow})


def _filled(snapshot: Snapshot, share: Callable[[FairAccount], float], *, preempt: bool) -> Plan:
    """Serve the smallest share repeatedly until nothing more fits."""
    root, accounts = tree(snapshot)
    allocs = fill(
        snapshot,
        root=root,
        accounts=accounts,
        share=share,
        order=by_arrival if preempt else in_turn,
        keep=not preempt,
    )
    ordered = sorted(present(snapshot), key=lambda job: (borrows(job), *in_turn(job), job.id))
    given = list(allocs)
    rank = {job_id: position for position, job_id in enumerate(given)}
    ordered.sort(key=lambda job: rank.get(job.id, len(given)))
    return meant(allocs, ordered, why={job.id: _WAITS for job in ordered if job.id not in allocs})
