"""ElasticFlow's admitted shares: renewed in every round, and never revoked for new jobs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scheduling.core.policies.elasticflow.shares import (
    Contract,
    Horizon,
    Profile,
    ShareSpan,
    satisfy,
    trimmed,
)
from scheduling.core.policies.engines.room import one_type, rates_by_size
from scheduling.core.policy_interface import PolicyJob, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """An accepted contract, its type, and its devices over time."""

    contract: Contract
    type: str
    profile: Profile


class Books:
    """The promises of one round."""

    def __init__(
        self,
        *,
        snapshot: Snapshot,
        free: Mapping[str, int],
        slot: float,
        slack: float,
        restarts: float,
        exact_jobs: int,
    ) -> None:
        self.snapshot = snapshot
        self.free = free
        self.slot = slot
        self.slack = slack
        self.restarts = restarts
        self.exact_jobs = exact_jobs
        self.promises: dict[int, Promise] = {}

    def renew(self, jobs: Sequence[PolicyJob], before: Mapping[str, Any]) -> None:
        """Renew the admitted shares with the remaining work.

        The shares are computed again. If they do not fit together, the rest of the old shares
        applies, which is sufficient if the predicted rates are right.
        """
        for job in jobs:
            old = before.get(str(job.id))
            if old is None or job.terms.deadline is None:
                continue
            contract = self._contract(job, old["type"])
            profile = tuple(ShareSpan(*span) for span in old["profile"])
            if contract is not None:
                self.promises[job.id] = Promise(
                    contract=contract,
                    type=old["type"],
                    profile=trimmed(profile, self.snapshot.now),
                )
        for kind in sorted({promise.type for promise in self.promises.values()}):
            mine = self._of_type(kind)
            profiles = satisfy([promise.contract for promise in mine], self._horizon(kind))
            if profiles is None:
                profiles = self._as_far_as_it_goes(kind, mine)
            self._write(kind, mine, profiles)

    def admit_all(self, jobs: Sequence[PolicyJob]) -> list[PolicyJob]:
        """Admit new jobs in order, and return those whose deadline cannot be guaranteed.

        Several jobs are tried together, and in halves if that fails, since each trial computes the
        shares of all jobs.
        """
        by_kind: dict[str, list[PolicyJob]] = {}
        for job in jobs:
            kinds = one_type(job, sorted(self.free))
            by_kind.setdefault(kinds[0] if kinds else "", []).append(job)
        refused: list[PolicyJob] = []
        for kind, members in sorted(by_kind.items()):
            refused.extend(self._admit_run(kind, members))
        return refused

    def _admit_run(self, kind: str, jobs: Sequence[PolicyJob]) -> list[PolicyJob]:
        if len(jobs) == 1:
            return [] if self._admit(jobs[0]) else list(jobs)
        contracts = [self._contract(job, kind) for job in jobs]
        new = [contract for contract in contracts if contract is not None]
        mine = self._of_type(kind)
        profiles = None
        if len(new) == len(jobs):
            profiles = satisfy([*(p.contract for p in mine), *new], self._horizon(kind))
        if profiles is None:
            half = len(jobs) // 2
            return [*self._admit_run(kind, jobs[:half]), *self._admit_run(kind, jobs[half:])]
        promises = [Promise(contract=contract, type=kind, profile=()) for contract in new]
        self._write(kind, [*mine, *promises], profiles)
        return []

    def _admit(self, job: PolicyJob) -> bool:
        """Admit a new job with its deadline if all other deadlines still hold."""
        for kind in one_type(job, sorted(self.free)):
            contract = self._contract(job, kind)
            if contract is None:
                continue
            mine = self._of_type(kind)
            contracts = [*(promise.contract for promise in mine), contract]
            horizon = self._horizon(kind)
            profiles = satisfy(contracts, horizon)
            if profiles is None and len(contracts) <= self.exact_jobs:
                # The solver is neither needed nor loaded if filling backwards succeeds.
                from scheduling.core.policies.elasticflow.shares import any_way  # noqa: PLC0415

                profiles = any_way(contracts, horizon)
            if profiles is not None:
                new = Promise(contract=contract, type=kind, profile=())
                self._write(kind, [*mine, new], profiles)
                return True
        return False

    def keeps(self, promise: Promise, n: int) -> bool:
        """Return whether the deadline is met with ``n`` devices until the share changes next."""
        now = self.snapshot.now
        first = next((span for span in promise.profile if span.start <= now + 1e-9), None)
        end = self._next_slot() if first is None else first.end
        rest = tuple(span for span in promise.profile if span is not first)
        worth = promise.contract.work((ShareSpan(now, end, n), *rest), now)
        planned = promise.contract.work(promise.profile, now)
        return worth >= min(promise.contract.steps, planned) * (1 - 1e-9)

    def next_change(self) -> float | None:
        """Time of the next change of a share."""
        now = self.snapshot.now
        ends = [
            time
            for promise in self.promises.values()
            for span in promise.profile
            for time in (span.start, span.end)
            if time > now + 1e-9
        ]
        return min(ends, default=None)

    def to_state(self) -> dict[str, Any]:
        """Convert to JSON values."""
        return {
            str(job): {
                "type": promise.type,
                "profile": [list(span) for span in promise.profile],
            }
            for job, promise in sorted(self.promises.items())
        }

    def _contract(self, job: PolicyJob, kind: str) -> Contract | None:
        """Build a job's requirement on a type; return None if its work is unknown."""
        rates = rates_by_size(self.snapshot, job, kind, self.snapshot.pool.capacity.get(kind, 0))
        if not rates or job.terms.deadline is None:
            return None
        steps = job.facts.steps_left
        if steps is None:
            if job.terms.estimate is None or job.gang not in rates:
                return None
            steps = max(0.0, job.terms.estimate - job.facts.executed) * rates[job.gang]
        held = {part.type for part in job.alloc.parts} if job.alloc else set()
        return Contract(
            id=job.id,
            rates=rates,
            steps=steps * self.slack,
            deadline=job.terms.deadline,
            restart=self.snapshot.model.restart_seconds(job, kind) * self.restarts,
            held=job.alloc.devices if job.alloc and held == {kind} else 0,
        )

    def _as_far_as_it_goes(self, kind: str, mine: Sequence[Promise]) -> dict[int, Profile]:
        """Keep the old shares; if they do not fit any more, earliest deadlines come first."""
        horizon = self._horizon(kind)
        kept: dict[int, Profile] = {}
        for promise in sorted(mine, key=lambda p: (p.contract.deadline, p.contract.id)):
            kept[promise.contract.id] = promise.profile if horizon.take(promise.profile) else ()
        return kept

    def _of_type(self, kind: str) -> list[Promise]:
        return [promise for _, promise in sorted(self.promises.items()) if promise.type == kind]

    def _write(self, kind: str, mine: Sequence[Promise], profiles: Mapping[int, Profile]) -> None:
        for promise in mine:
            job = promise.contract.id
            self.promises[job] = replace(promise, type=kind, profile=profiles[job])

    def _horizon(self, kind: str) -> Horizon:
        return Horizon(now=self.snapshot.now, slot=self.slot, free=self.free.get(kind, 0))

    def _next_slot(self) -> float:
        horizon = self._horizon("")
        return horizon.slot_before(self.snapshot.now) + self.slot
