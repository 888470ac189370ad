"""The clock over policies: a call that takes too long is ended where it stands."""

import ctypes
import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import FrameType

from scheduling.core.policies.guarding import TimeLimit

_AGAIN = 0.25  # seconds until the next try, for code that swallows the first one


def time_limit(seconds: float) -> TimeLimit:
    """What bounds a block to ``seconds``: beyond them ``TimeoutError`` is raised in it.

    In a process's main thread a timer of the operating system does it, which also ends waiting
    calls; in other threads a watching thread does, between two steps of the interpreter.
    """
    return partial(_bounded, seconds)


def _bounded(seconds: float) -> AbstractContextManager[None]:
    is_main = threading.current_thread() is threading.main_thread()
    return _by_timer(seconds) if is_main else _by_thread(seconds)


@contextmanager
def _by_timer(seconds: float) -> Iterator[None]:
    is_open = True

    def ring(_number: int, _frame: FrameType | None) -> None:
        if is_open:
            raise TimeoutError

    before = signal.signal(signal.SIGALRM, ring)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN)
    try:
        yield
    finally:
        is_open = False
        signal.setitimer(signal.ITIMER_REAL, left, interval)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _by_thread(seconds: float) -> Iterator[None]:
    watched = threading.get_ident()
    lock, over = threading.Lock(), threading.Event()

    def watch() -> None:
        wait = seconds
        while not over.wait(wait):
            with lock:
                if not over.is_set():
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(
                        ctypes.c_ulong(watched), ctypes.py_object(TimeoutError)
                    )
            wait = _AGAIN

    watcher = threading.Thread(target=watch, name="policy-limit", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        # Whoever holds the lock has not raised yet, and will not any more.
        with lock:
            over.set()
