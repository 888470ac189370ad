"""Time limits for policies: a call that takes too long is interrupted.

A timer that fires at the end of its block must not interrupt later work of the process or thread.
Therefore the exit of a block cannot be interrupted.
"""

import ctypes
import signal
import threading
from contextlib import AbstractContextManager
from functools import partial
from types import FrameType, TracebackType
from typing import Any, Final, cast

from scheduling.core.policies.base import TimeLimit

_AGAIN = 0.25  # seconds until the next signal, if code swallows the first exception


def time_limit(seconds: float) -> TimeLimit:
    """Limit a block to ``seconds``; then ``TimeoutError`` is raised in it.

    In the main thread, a timer of the operating system interrupts the block, including blocking
    calls. In other threads, a watchdog thread interrupts it between two bytecode instructions.
    """
    return partial(_bounded, seconds)


def _bounded(seconds: float) -> AbstractContextManager[None]:
    is_main = threading.current_thread() is threading.main_thread()
    return _Timer(seconds) if is_main else _watched(seconds)


class _Timer:
    """A block under the process's timer, whose signals are ignored at entry and exit."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGALRM, self._ring)
        self._timer = signal.setitimer(signal.ITIMER_REAL, self._seconds, _AGAIN)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        signal.setitimer(signal.ITIMER_REAL, *self._timer)
        signal.signal(signal.SIGALRM, self._before)

    @staticmethod
    def _ring(_number: int, frame: FrameType | None) -> None:
        if frame is None or frame.f_code not in _DEAF:
            raise TimeoutError


_DEAF: Final = (_Timer.__enter__.__code__, _Timer.__exit__.__code__)


class _Gate:
    """A block whose entry and exit are single calls of the interpreter."""

    __slots__ = ("__enter__", "__exit__")

    def __init__(self, enter: Any, leave: Any) -> None:
        self.__enter__ = enter
        self.__exit__ = leave


def _watched(seconds: float) -> AbstractContextManager[None]:
    begun, over = threading.Lock(), threading.Lock()
    begun.acquire()
    over.acquire()
    watched = ctypes.c_ulong(threading.get_ident())
    error = ctypes.py_object(TimeoutError)
    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc

    def watch() -> None:
        begun.acquire()
        wait = seconds
        while not over.acquire(timeout=wait):
            # Checked again: the block may have ended while this thread waited for the lock.
            if over.locked():
                raise_in(watched, error)
            wait = _AGAIN

    threading.Thread(target=watch, name="policy-limit", daemon=True).start()
    gate = _Gate(begun.release, over.__exit__)
    return cast("AbstractContextManager[None]", gate)
