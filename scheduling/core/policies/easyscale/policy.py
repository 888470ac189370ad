"""EasyScale: elastic jobs with a fixed number of logical workers, on mixed types (SC '23).

Every job plans the layout of its logical workers on its devices (``intra``) and proposes growths;
between jobs, waiting ones are first admitted with their minimum, and then the proposals with the
largest gain per GPU are accepted (``inter``). A growth that makes a job slower is reverted.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from scheduling.core.messages import message, sentence
from scheduling.core.performance.executors import executors_on
from scheduling.core.policies.base import Need
from scheduling.core.policies.easyscale.planning import Threads, Trainee, Workers, share_out
from scheduling.core.policies.engines.greedy import meant, serve_rest
from scheduling.core.policies.engines.room import FreeDevices, borrows, one_type, present
from scheduling.core.policies.parameters import parameter
from scheduling.core.policy_interface import Alloc, JobPhase, Kind, Part, Plan, PolicyJob, Snapshot

_SETTLED_ROUNDS: Final = 2
_WAITS: Final = sentence(message("no-type-has-enough"))


@dataclass(frozen=True, slots=True, kw_only=True)
class EasyScale:
    """Admits waiting jobs, then grows the job that gains most per GPU; never shrinks a job.

    Attributes:
        most_waste: maximum fraction of a configuration's computing power that may be lost.
        mix: a job may use several types at once.
        revert: a growth that has made a job slower is reverted and not tried again.
    """

    most_waste: float = parameter(0.3, sentence("param-power-loss"), low=0.0, high=1.0)
    mix: bool = parameter(True, sentence("param-mixed-types"))
    revert: bool = parameter(True, sentence("param-undo-growth"))

    name: ClassVar[str] = "easyscale"
    aliases: ClassVar[tuple[str, ...]] = ()
    summary: ClassVar[str] = (
        "elastic jobs with a fixed number of logical workers, planned on any device types"
    )
    needs: ClassVar[frozenset[Need]] = frozenset({Need.THROUGHPUT})
    stateless: ClassVar[bool] = False

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Revert failed growths, admit, and grow."""
        jobs = present(snapshot)
        room = FreeDevices(snapshot)
        allocs = room.take_pinned(jobs)
        mine = sorted(
            (
                job
                for job in jobs
                if job.id not in allocs and not borrows(job) and one_type(job, room.kinds)
            ),
            key=lambda job: (-job.priority, job.submitted, job.id),
        )
        memory = {job.id: self._remember(job, snapshot, state) for job in mine}
        trainees = [self._trainee(job, snapshot, room, memory[job.id]) for job in mine]
        free = {kind: room.free(kind) for kind in room.kinds}
        for trainee in trainees:
            for kind, n in trainee.gpus.items():
                free[kind] -= n
        plans = share_out(trainees, free, most_waste=self.most_waste)
        for job, trainee in zip(mine, trainees, strict=True):
            threads = plans.get(job.id)
            if threads is not None:
                allocs[job.id] = _alloc(job, trainee, threads)
                room.take(job, allocs[job.id])
                memory[job.id]["wanted"] = _by_type(allocs[job.id])
        serve_rest((job for job in jobs if job.id not in memory), room, allocs)
        ordered = [*mine, *(job for job in jobs if job.id not in memory)]
        plan = meant(allocs, ordered, why=dict.fromkeys(sorted(memory), _WAITS))
        # A job that is leaving to return at another size returns to its known best.
        leaving = {str(job.id) for job in snapshot.jobs if job.phase is JobPhase.LEAVING}
        kept = {job: state[job] for job in sorted(leaving & state.keys())}
        return plan, kept | {str(job): memory[job] for job in sorted(memory)}

    def _remember(
        self, job: PolicyJob, snapshot: Snapshot, state: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the state of a job's sizes: current size, start, pace, failed sizes."""
        known = state.get(str(job.id), {})
        held = _by_type(job.alloc)
        wanted = dict(known.get("wanted", {}))
        pace = 1.0 / job.facts.step_time if job.facts.step_time else None
        barred = list(known.get("barred", []))
        if held != known.get("gpus"):
            # Its previous size is stored, for the comparison and for a revert.
            before = known if known.get("pace") else known.get("before", {})
            return {
                "gpus": held,
                "since": snapshot.now,
                "pace": None,
                "before": {"gpus": before.get("gpus", {}), "pace": before.get("pace")},
                "barred": barred,
                "wanted": wanted,
            }
        since = float(known.get("since", snapshot.now))
        settled = snapshot.now - since >= _SETTLED_ROUNDS * snapshot.round_seconds
        before = dict(known.get("before", {}))
        slower = pace is not None and settled and pace < (before.get("pace") or 0.0)
        grown = sum(held.values()) > sum(before.get("gpus", {}).values()) > 0
        if self.revert and slower and grown:
            barred.append(held)
        return {
            "gpus": held,
            "since": since,
            "pace": pace if settled else known.get("pace"),
            "before": before,
            "barred": barred,
            "wanted": wanted,
        }

    def _trainee(
        self, job: PolicyJob, snapshot: Snapshot, room: FreeDevices, memory: Mapping[str, Any]
    ) -> Trainee:
        scale = job.terms.scale
        # Hybrid jobs have no logical workers to move: they run at the requested size.
        elastic = scale is not None and len(job.demand.members) == 1 and not job.grids
        kinds = one_type(job, room.kinds)
        sharing = job.facts.sharing
        rates = {
            kind: tuple(speed * pace for pace in sharing.get(kind, (1.0,)))
            for kind in kinds
            if (speed := snapshot.model.speed(job, kind)) > 0
        }
        held = dict(memory["gpus"])
        if held in memory["barred"]:
            held = dict(memory["before"]["gpus"])
        most = scale.maximum if scale is not None and elastic else job.gang
        # A job without a number of logical workers counts as having one for each device of its
        # maximum.
        workers = Workers(most=job.terms.logical_workers or most, rates=rates)
        return Trainee(
            id=job.id,
            workers=workers,
            types=tuple(kind for kind in kinds if kind in rates),
            least=job.least if elastic else job.gang,
            gpus=held,
            wanted={} if held or memory["wanted"] in memory["barred"] else memory["wanted"],
            mixes=self.mix and elastic and job.terms.kind is not Kind.RIGID,
            allows=job.allows,
            barred=tuple(memory["barred"]),
        )


def _by_type(alloc: Alloc | None) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in alloc.parts if alloc else ():
        if part.type is not None:
            found[part.type] = found.get(part.type, 0) + part.n
    return dict(sorted(found.items()))


def _alloc(job: PolicyJob, trainee: Trainee, threads: Threads) -> Alloc:
    """Build parts by type with the logical workers of each device; idle devices only if needed."""
    gpus = dict(threads.gpus)
    if not job.allows(threads.total):
        gpus = dict(trainee.gpus)
    if job.alloc is not None and gpus == _by_type(job.alloc):
        parts = job.alloc.parts
    else:
        level = job.demand.members[0].within.value
        parts = tuple(Part(n=n, type=kind, level=level) for kind, n in sorted(gpus.items()))
    if job.terms.executors > 1 and len(gpus) == 1:
        # On mixed types, the driver chooses the number: it knows the speed ratios of the types.
        ((kind, n),) = gpus.items()
        paces = job.facts.sharing.get(kind, (1.0,))
        number = executors_on(trainee.workers.most, n, paces)
        parts = tuple(replace(part, executors=number) for part in parts)
    left = trainee.workers.most
    layout = []
    for part in parts:
        kind = part.type or ""
        each = threads.executors.get(kind, 0) * threads.threads.get(kind, 0)
        for _ in range(part.n):
            layout.append(min(each, left))
            left -= layout[-1]
    return Alloc(parts=parts, layout=tuple(layout))
