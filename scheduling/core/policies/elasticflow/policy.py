"""ElasticFlow: deadlines guaranteed at admission by elastic shares (ASPLOS '23).

Admission control: a job with a deadline is admitted only if its minimum satisfactory share fits
together with all others. Resource allocation gives the rest to the jobs that gain most; each step
goes to the job whose added devices do the most work, in device-time of its smallest size.
Jobs without a deadline are best effort.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, ClassVar, Final

from scheduling.core.messages import message, sentence
from scheduling.core.policies.base import Need
from scheduling.core.policies.elasticflow.books import Books, Promise
from scheduling.core.policies.elasticflow.shares import at
from scheduling.core.policies.engines.greedy import greedy_marginal, meant, serve_rest
from scheduling.core.policies.engines.room import (
    FreeDevices,
    borrows,
    on_type,
    one_type,
    present,
    rates_by_size,
)
from scheduling.core.policies.parameters import parameter
from scheduling.core.policy_interface import Alloc, Part, Plan, PolicyJob, Snapshot
from scheduling.core.reasons import Reason
from tessera.reasons import ReasonCode

_LATE: Final = sentence(message("promises-leave-too-little"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticFlow:
    """Guarantees deadlines with the fewest devices; the rest go to the jobs that gain most.

    Attributes:
        slot: seconds between changes of size.
        slack: factor on the work, against errors of the estimate.
        restarts: factor on restart costs.
        reject: a job whose deadline cannot be met is rejected; otherwise it is best effort.
        exact_jobs: maximum number of jobs with a deadline for which admission is exact.
    """

    slot: float = parameter(60.0, sentence("param-resize-interval"), low=1.0, high=86_400.0)
    slack: float = parameter(1.0, sentence("param-work-factor"), low=1.0, high=10.0)
    restarts: float = parameter(1.0, sentence("param-restart-factor"), low=0.0, high=10.0)
    reject: bool = parameter(True, sentence("param-refuse"))
    exact_jobs: int = parameter(6, sentence("param-exhaustive"), low=0, high=20)

    name: ClassVar[str] = "elasticflow"
    aliases: ClassVar[tuple[str, ...]] = ()
    summary: ClassVar[str] = sentence("summary-elasticflow")
    needs: ClassVar[frozenset[Need]] = frozenset({Need.RUNTIME, Need.THROUGHPUT, Need.DEADLINE})
    stateless: ClassVar[bool] = False

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Renew the admitted shares, admit new jobs, and distribute the devices."""
        jobs = present(snapshot)
        room = FreeDevices(snapshot)
        allocs = room.take_pinned(jobs)
        free = [job for job in jobs if job.id not in allocs]
        books = Books(
            snapshot=snapshot,
            free={kind: room.free(kind) for kind in room.kinds},
            slot=self.slot,
            slack=self.slack,
            restarts=self.restarts,
            exact_jobs=self.exact_jobs,
        )
        books.renew([job for job in free if not borrows(job)], state.get("promises", {}))
        refused = set(state.get("refused", ())) & {job.id for job in jobs}
        new = [
            job
            for job in sorted(free, key=lambda job: (job.submitted, job.id))
            if job.terms.deadline is not None
            and not borrows(job)
            and job.id not in refused
            and job.id not in books.promises
        ]
        refused |= {job.id for job in books.admit_all(new)}
        reject = {job.id: _refusal() for job in free if self.reject and job.id in refused}
        self._share_out(snapshot, [j for j in free if j.id not in reject], books, room, allocs)
        ordered = sorted(
            (job for job in jobs if job.id not in reject),
            key=lambda job: (borrows(job), job.terms.deadline or inf, job.submitted, job.id),
        )
        plan = meant(
            allocs,
            ordered,
            why=dict.fromkeys((job.id for job in ordered), _LATE),
            wake=books.next_change(),
        )
        after = {"promises": books.to_state(), "refused": sorted(refused)}
        return replace(plan, reject=reject), after

    def _share_out(
        self,
        snapshot: Snapshot,
        jobs: Sequence[PolicyJob],
        books: Books,
        room: FreeDevices,
        allocs: dict[int, Alloc],
    ) -> None:
        """Allocate the admitted shares, then distribute the rest step by step."""
        kinds: dict[int, str] = {}
        start: dict[int, int] = {}
        rates: dict[int, Mapping[int, float]] = {}
        by_id = {job.id: job for job in jobs}
        for job in jobs:
            promise = books.promises.get(job.id)
            if promise is not None:
                kinds[job.id], start[job.id] = promise.type, at(promise.profile, snapshot.now)
                rates[job.id] = promise.contract.rates
                _take(room, job, promise.type, start[job.id])
        for job in sorted(jobs, key=lambda job: (borrows(job), job.submitted, job.id)):
            if job.id not in kinds:
                choice = _best_effort(snapshot, job, room)
                if choice is not None:
                    kinds[job.id], rates[job.id] = choice
                    start[job.id] = 0
        mine = {job_id: n for job_id, n in start.items() if not borrows(by_id[job_id])}
        counts = greedy_marginal(
            start=mine,
            step=lambda job_id, n: _next_size(rates[job_id], n, books.promises.get(job_id), books),
            gain=lambda job_id, n, m: _gain(rates[job_id], n, m),
            free={kind: room.free(kind) for kind in room.kinds},
            pool_of=kinds.__getitem__,
        )
        for job_id, n in counts.items():
            if n > 0:
                allocs[job_id] = _sized(by_id[job_id], kinds[job_id], n)
                _take(room, by_id[job_id], kinds[job_id], n - start[job_id])
        # Jobs that borrow, or fit only on two types, get idle devices.
        serve_rest((job for job in jobs if job.id not in books.promises), room, allocs)


def _next_size(
    rates: Mapping[int, float], n: int, promise: Promise | None, books: Books
) -> int | None:
    """Return the next size that is faster and still meets the admitted deadlines, or None."""
    faster = (m for m in sorted(rates) if m > n and rates[m] > rates.get(n, 0.0))
    return next((m for m in faster if promise is None or books.keeps(promise, m)), None)


def _gain(rates: Mapping[int, float], n: int, m: int) -> float:
    """Return the work per added device, relative to the smallest size."""
    smallest = min(rates)
    added = (rates[m] - rates.get(n, 0.0)) / (m - n) * smallest / rates[smallest]
    return added + (1e6 if n == 0 else 0.0)


def _best_effort(
    snapshot: Snapshot, job: PolicyJob, room: FreeDevices
) -> tuple[str, Mapping[int, float]] | None:
    """Choose the type for a best-effort job: the current one, or the one with most room."""
    held = {part.type for part in job.alloc.parts} if job.alloc else set()
    kinds = sorted(
        one_type(job, room.kinds), key=lambda kind: (kind not in held, -room.free(kind), kind)
    )
    for kind in kinds:
        rates = rates_by_size(snapshot, job, kind, snapshot.pool.capacity.get(kind, 0))
        if rates:
            return kind, rates
    return None


def _sized(job: PolicyJob, kind: str, n: int) -> Alloc:
    if n == job.gang:
        return on_type(job, kind)
    return Alloc(parts=(Part(n=n, type=kind, level=job.demand.members[0].within.value),))


def _take(room: FreeDevices, job: PolicyJob, kind: str, n: int) -> None:
    if n > 0:
        room.take(job, Alloc(parts=(Part(n=n, type=kind),)))


def _refusal() -> Reason:
    return Reason(
        code=ReasonCode.DEADLINE_INFEASIBLE,
        message=message("deadline-infeasible"),
        unblock=(message("ask-later-deadline"),),
    )
