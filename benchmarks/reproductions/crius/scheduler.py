"""Rounds of Crius: completions, arrivals, opportunistic jobs and their suspension."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.reproductions.crius.devices import Table
from benchmarks.reproductions.crius.downgrading import Downgrades, Outcome
from benchmarks.reproductions.crius.jobs import INFEASIBLE, Job, Judge, Queues, Request
from benchmarks.reproductions.crius.moving import ALL_PASSES, Mover, Placed
from benchmarks.reproductions.crius.upgrading import Upgrades

_MOST_RESTARTS = 100
_MOST_UPGRADES = 10
_DEPTH = 3
_DEPTH_IF_BUSY = 2
_BUSY = 150


@dataclass(slots=True, kw_only=True)
class Crius:
    """The scheduler.

    Attributes:
        depth: of the downgrade search; 0 for the artefact's rule (3, or 2 with more than 150
            running jobs).
        opportunistic: whether jobs may start past a waiting job of their type.
        recounts: whether work before a suspension counts a second time after it.
        order: waiting and opportunistic jobs in the order of their arrival.
        late: waiting jobs that have missed their deadlines.
    """

    judge: Judge
    queues: Queues
    jobs: Callable[[int], Job]
    depth: int = 0
    scaling: bool = True
    types: bool = True
    opportunistic: bool = True
    recounts: bool = True
    order: list[Job] = field(default_factory=list)
    late: set[Job] = field(default_factory=set)
    mover: Mover = field(init=False)
    downgrades: Downgrades = field(init=False)
    upgrades: Upgrades = field(init=False)

    def __post_init__(self) -> None:
        """Set up the searches."""
        self.mover = Mover(self.judge)
        self.downgrades = Downgrades(
            judge=self.judge,
            mover=self.mover,
            jobs=self.jobs,
            scaling=self.scaling,
            types=self.types,
        )
        self.upgrades = Upgrades(
            judge=self.judge, mover=self.mover, scaling=self.scaling, types=self.types
        )

    def decide(self, ended: Sequence[Job], arrived: Sequence[Job]) -> None:
        """Handle a round's completions, then its arrivals."""
        if ended:
            before = self.queues.table
            self.queues.free(ended)
            for job in ended:
                self._remove(job)
            self._defragment()
            self._restart()
            if not arrived:
                self._upgrade()
            self._swap_back(before)
        if arrived:
            before = self.queues.table
            self._start(arrived)
            self._upgrade()
            self._swap_back(before)

    def end_round(self, now: float) -> None:
        """Give up waiting jobs whose deadline has passed, if deadlines count."""
        if self.judge.deadlines:
            self.late.update(job for job in self.queues.pending if job.deadline <= now)

    def _start(self, arrived: Sequence[Job]) -> None:
        """Start new jobs in order; one that starts past a waiting job is opportunistic."""
        passes = ALL_PASSES
        for job in arrived:
            self.order.append(job)
            plan = self._fit(job, self.queues.table, passes)
            if plan is None or not (self.opportunistic or not self.queues.waits_for(job.kind)):
                self.queues.pending.append(job)
                continue
            passes = plan.passes
            if len(self.order) == 1:
                self.order.clear()
            else:
                job.opportunistic = True
                for other in self.order[:-1]:
                    other.blocker = other.blocker or not other.opportunistic
            self.queues.start(job, plan.table)

    def _fit(self, job: Job, table: Table, passes: int) -> Outcome | None:
        """Return the plan that places a job with the largest gain, or None.

        Others are downgraded only if it does not get its best locality without that.
        """
        request = Request(job, job.kind, job.shape.devices)
        placed = self.mover.search(request, table.copy(), passes)
        direct = Outcome(placed.table, placed.gain, placed.passes)
        if placed.found and not placed.relaxed:
            return direct
        plans = [direct] if placed.found else []
        plans += self.downgrades.outcomes(request, table, passes, self._depth())
        for plan in sorted(plans, key=lambda plan: -plan.gain):
            if plan.gain > INFEASIBLE and self._is_sound(plan.table):
                return plan
        return None

    def _depth(self) -> int:
        if self.depth:
            return self.depth
        return _DEPTH if len(self.queues.running) <= _BUSY else _DEPTH_IF_BUSY

    def _is_sound(self, table: Table) -> bool:
        """Return whether a plan leaves each normal job devices; the artefact would stop here."""
        return all(
            table.is_even(job.index) for job in self.queues.running if not job.opportunistic
        )

    def _restart(self) -> None:
        """Start waiting jobs in the order of arrival; each success begins a new pass."""
        first = 0
        for _trial in range(_MOST_RESTARTS):
            place = self._restart_one(first) if self.queues.pending else None
            if place is None:
                return
            first = place

    def _restart_one(self, first: int) -> int | None:
        """Start the first job from a place on that fits, and return its place, or None.

        Of a model and batch size that failed, no other job is tried in this pass.
        """
        failed: set[tuple[str, int]] = set()
        blocked: set[str] = set()
        for place, job in enumerate(self.order):
            if place < first or job.opportunistic or job in self.late:
                continue
            if (job.model, job.batch) in failed or job.kind in blocked:
                continue
            plan = self._fit(job, self._offered_to(job, place), ALL_PASSES)
            if plan is not None:
                self._apply_restart(job, plan.table)
                return place
            failed.add((job.model, job.batch))
            if not self.opportunistic:
                blocked.add(job.kind)
        return None

    def _offered_to(self, job: Job, place: int) -> Table:
        """Return the occupants; a blocker may take the devices of opportunistic jobs behind it."""
        table = self.queues.table.copy()
        for other in self.order[place + 1 :] if job.blocker else ():
            if not other.blocker and not other.opportunistic:
                break
            if other.opportunistic and other.running:
                table.offer(other.index)
        return table

    def _apply_restart(self, job: Job, table: Table) -> None:
        """Start a waiting job, and suspend the opportunistic jobs that lose devices."""
        before = self.queues.table
        hit = [
            other
            for other in map(self.jobs, before.jobs())
            if other.opportunistic and table.count(other.index) != before.count(other.index)
        ]
        table.withdraw()
        for other in hit:
            table.clear(other.index)
        self.queues.pending.remove(job)
        self.order.remove(job)
        job.blocker = False
        for other in hit:
            self._suspend(other)
        while self.order and self.order[0].opportunistic and self.order[0].running:
            self.order.pop(0).opportunistic = False
        self.queues.start(job, table)

    def _suspend(self, job: Job) -> None:
        """Suspend an opportunistic job; its length becomes what is left of it."""
        job.opportunistic = False
        if job in self.order:
            job.blocker = self._unblock_above(self.order.index(job))
        job.running = False
        job.steps = job.left
        if not self.recounts:
            job.executed = job.done = 0.0
        self.queues.running.remove(job)
        self.queues.pending.append(job)

    def _remove(self, job: Job) -> None:
        """Remove an ended job from the order of decisions."""
        if job.opportunistic and job in self.order:
            self._unblock_above(self.order.index(job))
            self.order.remove(job)

    def _unblock_above(self, place: int) -> bool:
        """Untag the blockers above a place without opportunistic jobs below.

        Returns:
            Whether there are opportunistic jobs below, so that nothing changed.
        """
        if any(other.opportunistic for other in self.order[place + 1 :]):
            return True
        for other in reversed(self.order[:place]):
            if not other.blocker:
                break
            other.blocker = False
        return False

    def _upgrade(self) -> None:
        """Upgrade running jobs step by step, the largest gain first."""
        passes = ALL_PASSES
        for _step in range(_MOST_UPGRADES):
            placed = self.upgrades.best(self.queues.running, self.queues.table, passes)
            if placed is None:
                return
            passes = placed.passes
            self.queues.adopt(placed.table)

    def _defragment(self) -> None:
        """Improve the locality of jobs on more nodes than they need, the largest gain first."""
        layout = self.queues.table.layout
        wide = [
            job
            for job in self.queues.running
            if job.shape.nodes > 1 and job.shape.each < layout.room[job.kind]
        ]
        passes = ALL_PASSES
        while wide:
            found = [
                (gain, -place, placed)
                for place, job in enumerate(wide)
                for gain, placed in self._gathered(job, passes)
            ]
            if not found:
                return
            _gain, place, placed = max(found, key=lambda item: item[:2])
            passes = placed.passes
            self.queues.adopt(placed.table)
            del wide[-place]

    def _gathered(self, job: Job, passes: int) -> Iterator[tuple[float, Placed]]:
        """Yield the move of a job to a better locality, on its own devices and by merges."""
        old = job.shape
        if old == self.queues.table.layout.best(old.type, old.devices):
            return
        trial = self.queues.table.copy()
        trial.fill_idle(job.index)
        request = Request(job, old.type, old.devices)
        placed = self.mover.search(request, trial, passes, clear=False)
        if not placed.found or not placed.table.remove_fillers():
            return
        new = placed.table.span(job.index)
        gain = INFEASIBLE if new is None else self.judge.gain(request, new, old)
        if gain > 0.0:
            yield gain, placed

    def _swap_back(self, before: Table) -> None:
        """Let a job that holds complete nodes keep its nodes if only they changed."""
        table = self.queues.table.copy()
        for job in self.queues.running:
            old, new = before.nodes(job.index), table.nodes(job.index)
            if not old or old == new or not self._is_swappable(job, before, table):
                continue
            free = [node for node in old if node not in new]
            for node, home in zip([node for node in new if node not in old], free, strict=False):
                table.swap(job.index, node, home)
        self.queues.adopt(table)

    def _is_swappable(self, job: Job, before: Table, table: Table) -> bool:
        """Return whether a job holds complete nodes of one type, in the same shape as before."""
        old, new = before.nodes(job.index), table.nodes(job.index)
        kinds, each = table.layout.kinds, job.shape.devices // len(old)
        return (
            each >= table.layout.room[job.kind]
            and kinds[old[0]] == kinds[new[0]]
            and len(old) == len(new)
            and before.on(job.index, old[0]) == table.on(job.index, new[0])
        )
