import threading
import time
from concurrent.futures import ThreadPoolExecutor

from scheduling.common.time_limits import time_limit

CALM_SECONDS = 0.8  # several times the wait between two rings


def busy(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def rings_after_blocks_that_end_as_the_clock_rings(limit: float, times: int) -> int:
    """Leave blocks just before, at and after their limit; how often something rings later."""
    for number in range(times):
        try:
            with time_limit(limit)():
                busy(limit * (0.96 + 0.08 * (number % 50) / 50))
        except TimeoutError:
            pass
    late = 0
    end = time.perf_counter() + CALM_SECONDS
    while time.perf_counter() < end:
        try:
            busy(0.05)
        except TimeoutError:
            late += 1
    return late


def test_a_timer_that_rings_while_its_block_is_left_does_not_ring_again() -> None:
    assert rings_after_blocks_that_end_as_the_clock_rings(0.001, 1500) == 0


def test_a_watcher_that_rings_while_its_block_is_left_does_not_ring_again() -> None:
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(rings_after_blocks_that_end_as_the_clock_rings, 0.02, 60).result(60)

    assert late == 0


def test_a_block_that_waits_is_ended_in_the_main_thread_and_a_busy_one_in_any() -> None:
    def was_ended(wait: bool) -> bool:
        try:
            with time_limit(0.05)():
                threading.Event().wait(60) if wait else busy(60)
        except TimeoutError:
            return True
        return False

    with ThreadPoolExecutor(1) as pool:
        assert was_ended(wait=True)
        assert pool.submit(was_ended, wait=False).result(60)


def test_an_outer_limit_holds_after_an_inner_one() -> None:
    ended_inside = ended_outside = False
    try:
        with time_limit(0.3)():
            try:
                with time_limit(0.05)():
                    busy(60)
            except TimeoutError:
                ended_inside = True
            busy(60)
    except TimeoutError:
        ended_outside = True

    assert ended_inside
    assert ended_outside
