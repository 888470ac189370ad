"""Assignment of jobs to sizes, with all single changes sorted by their gain.

A change halves or doubles a job, or moves it to another type at the same size. The changes of all
jobs with the same size before and after are one sorted list, so that the best change is found
without a pass over the jobs.
"""

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping

from scheduling.core.policies.crius.options import JobOptions, Slot

Change = tuple[Slot, Slot]


class Assignment:
    """Sizes of the jobs, free devices, and the gains of all single changes.

    Attributes:
        slots: size by job.
        free: free devices by type.
        at: number of jobs by size.
    """

    def __init__(self, free: Mapping[str, int]) -> None:
        self.free = dict(free)
        self.slots: dict[int, Slot] = {}
        self.options: dict[int, JobOptions] = {}
        self.at: Counter[Slot] = Counter()
        self._changes: defaultdict[Change, list[tuple[float, int]]] = defaultdict(list)

    @property
    def total(self) -> float:
        """Sum of the values of all jobs."""
        return sum(self.options[job_id].values[slot] for job_id, slot in self.slots.items())

    def place(self, options: JobOptions, slot: Slot) -> None:
        """Assign devices to a job without a size, or change its size."""
        if options.job.id in self.slots:
            self.remove(options.job.id)
        job_id = options.job.id
        self.slots[job_id], self.options[job_id] = slot, options
        self.free[slot.type] -= slot.devices
        self.at[slot] += 1
        for target, gain in single_changes(options, slot):
            insort(self._changes[slot, target], (-gain, job_id))

    def remove(self, job_id: int) -> JobOptions:
        """Remove a job's size, and free its devices."""
        slot, options = self.slots.pop(job_id), self.options.pop(job_id)
        self.free[slot.type] += slot.devices
        self.at[slot] -= 1
        for target, gain in single_changes(options, slot):
            changes = self._changes[slot, target]
            del changes[bisect_left(changes, (-gain, job_id))]
        return options

    def best(self, slot: Slot, target: Slot, without: Container[int]) -> tuple[float, int] | None:
        """Return gain and job of the best change between two sizes; the smaller ID wins ties."""
        for loss, job_id in self._changes.get((slot, target), ()):
            if job_id not in without:
                return -loss, job_id
        return None

    def upgrades(self) -> Iterator[tuple[float, int, Slot]]:
        """Yield gain, job and target of the best possible move or doubling of each size."""
        for (slot, target), changes in self._changes.items():
            more = target.devices - (slot.devices if target.type == slot.type else 0)
            if changes and target.devices >= slot.devices and more <= self.free[target.type]:
                loss, job_id = changes[0]
                yield -loss, job_id, target


def single_changes(options: JobOptions, slot: Slot) -> Iterable[tuple[Slot, float]]:
    """Return the sizes one change away at which a job can run, with their gains."""
    now = options.values[slot]
    for target, value in options.values.items():
        same_type = target.type == slot.type
        if (
            (target.devices in (slot.devices // 2, 2 * slot.devices))
            if same_type
            else (target.devices == slot.devices)
        ):
            yield target, value - now
