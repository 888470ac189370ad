"""Device memory of guests: the bound falls at once, rises slowly, and never exceeds the room."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.node.sharing import memory
from tessera.node.sharing.memory import MemoryAction, Peak, Peaks

GIB = 1 << 30
SIZES = st.integers(0, 96 * GIB)


@given(device=SIZES, contexts=SIZES, peaks=st.lists(SIZES), floor=SIZES, before=SIZES)
def test_holder_headroom_contexts_and_guest_fit_together(
    device, contexts, peaks, floor, before
) -> None:
    holder = memory.holder_bound(peaks, device)
    room = memory.room(device, contexts, holder)

    for rises in (True, False):
        bound = memory.guest_bound(room, floor, before, rises=rises)
        if bound.bytes:
            assert bound.bytes + holder + contexts + memory.headroom(device) <= device


@given(room=SIZES, floor=SIZES, before=SIZES)
def test_a_bound_falls_at_once_and_rises_only_if_it_may(room, floor, before) -> None:
    still = memory.guest_bound(room, floor, before, rises=False)
    rising = memory.guest_bound(room, floor, before, rises=True)

    assert still.bytes <= before
    assert still.bytes <= rising.bytes <= room
    assert (
        (still.action is MemoryAction.EVICT)
        == (rising.action is MemoryAction.EVICT)
        == (room < floor)
    )
    if still.action is MemoryAction.SHRINK:
        assert still == rising == (room, MemoryAction.SHRINK)


@given(room=st.integers(-GIB, 96 * GIB), floors=st.lists(st.integers(1, 30 * GIB), max_size=3))
def test_guests_divide_the_room_above_their_floors(room, floors) -> None:
    parts = memory.divided(room, floors)

    assert sum(parts) <= max(room, 0)
    assert all(part == 0 or part >= floor for part, floor in zip(parts, floors, strict=True))
    above = [part - floor for part, floor in zip(parts, floors, strict=True) if part]
    assert len(set(above)) <= 1
    leaving = [part == 0 for part in parts]
    assert leaving == sorted(leaving)


def test_a_holder_with_unknown_memory_takes_the_whole_device() -> None:
    assert memory.holder_bound([], 24 * GIB) == 24 * GIB
    assert memory.room(24 * GIB, 0, 24 * GIB) < 0


def test_the_headroom_is_three_percent_and_at_least_256_mib() -> None:
    assert memory.headroom(80 * GIB) == 3 * 80 * GIB // 100
    assert memory.headroom(2 * GIB) == 256 << 20


def test_old_peaks_leave_the_window_after_a_minute_and_200_steps() -> None:
    peaks = memory.after_look(Peaks(), Peak(0.0, 0, 9 * GIB))
    peaks = memory.after_look(peaks, Peak(61.0, 100, 5 * GIB))
    assert peaks.highest == 9 * GIB

    peaks = memory.after_look(peaks, Peak(62.0, 201, 6 * GIB))

    assert peaks.highest == 6 * GIB
    assert peaks.rose_at == 62.0


def test_a_holder_is_stable_30_seconds_and_100_steps_after_its_highest_peak() -> None:
    peaks = memory.after_look(Peaks(), Peak(5.0, 10, 9 * GIB))
    peaks = memory.after_look(peaks, Peak(20.0, 60, 8 * GIB))

    assert not memory.is_stable(peaks, 34.0, 200)
    assert not memory.is_stable(peaks, 60.0, 109)
    assert memory.is_stable(peaks, 35.0, 110)
    assert not memory.is_stable(Peaks(), 90.0, 900)


def test_a_bound_rises_after_a_minute_and_then_each_ten_seconds() -> None:
    def rises(now: float, *, stable: bool = True, rose_at: float = 0.0) -> bool:
        return memory.may_rise(stable=stable, now=now, guest_since=0.0, rose_at=rose_at)

    assert not rises(59.0)
    assert rises(60.0)
    assert not rises(60.0, stable=False)
    assert not rises(75.0, rose_at=66.0)
    assert rises(76.0, rose_at=66.0)


class SharedMemory:
    """A device in virtual time: its holder grows, and its guest uses all of its bound.

    ``most`` is the largest growth of the holder at once, as a share of its memory.
    """

    most = 0.05

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.device = self.chance.choice((16, 40, 80)) * GIB
        self.contexts = self.chance.randrange(GIB // 2, GIB)
        self.holder = self.chance.randrange(self.device // 8, self.device // 2)
        self.floor = self.chance.randrange(GIB // 2, 3 * GIB)
        self.bound = self.floor
        self.guest = 0
        self.peaks = Peaks()
        self.rose_at = 0.0
        self.heard: list[tuple[float, int]] = []
        self.growths = self.grown = 0

    def play(self, seconds: float) -> bool:
        """Play with looks every 0.25 s; returns whether the holder always got its memory."""
        now, step, next_growth = 0.0, 0, 20.0
        batch = self.chance.uniform(0.05, 2.0)
        while now < seconds:
            now, step = now + 0.25, step + 1
            if now >= next_growth:
                next_growth = now + self.chance.uniform(3.0, 40.0)
                self.holder += int(self.chance.uniform(0.0, self.most) * self.holder)
                self.growths += 1
                self.grown += self.guest > 0
            if self.holder + self.contexts > self.device - memory.headroom(self.device):
                return True  # it does not fit into the device alone
            if self.holder + self.contexts + self.guest > self.device:
                return False
            self._look(now, step, batch)
        return True

    def _look(self, now: float, step: int, batch: float) -> None:
        self.peaks = memory.after_look(self.peaks, Peak(now, step, self.holder))
        highest = memory.holder_bound([self.peaks.highest], self.device)
        available = memory.room(self.device, self.contexts, highest)
        rises = memory.may_rise(
            stable=memory.is_stable(self.peaks, now, step),
            now=now,
            guest_since=0.0,
            rose_at=self.rose_at,
        )
        found = memory.guest_bound(available, self.floor, self.bound, rises=rises)
        if found.bytes > self.bound:
            self.rose_at = now
        self.bound = found.bytes
        # The guest obeys after its mini-batch, and is gone after its grace and SIGKILL.
        self.heard.append((now + batch, found.bytes))
        while self.heard and self.heard[0][0] <= now:
            self.guest = self.heard.pop(0)[1]


@pytest.mark.parametrize("trials", [20, pytest.param(500, marks=pytest.mark.soak)])
def test_no_holder_runs_out_of_memory_that_its_guest_has(trials: int) -> None:
    """Growth of up to 5 % of the holder within the reaction of its guest, of at most 2 s."""
    played = [SharedMemory(seed) for seed in range(trials)]

    failed = [number for number, trial in enumerate(played) if not trial.play(150.0)]

    assert failed == []
    assert sum(trial.grown for trial in played) > 2 * trials


def test_a_holder_that_grows_faster_than_its_guest_can_shrink_needs_its_own_spilling() -> None:
    class Sudden(SharedMemory):
        most = 0.6

    assert not all(Sudden(seed).play(150.0) for seed in range(20))
