"""Device memory of guests: the bound falls at once, rises slowly, and never exceeds the room."""

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
