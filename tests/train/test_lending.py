"""What was exchanged is waited for until the threads of the group have let go of it."""

import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tessera.train import lending


class Tensor:
    """As much of one as an exchange needs: another object with the same memory."""

    def __init__(self, memory: list[int]) -> None:
        self.memory = memory

    def detach(self) -> "Tensor":
        return Tensor(self.memory)


class Group:
    """Its thread holds what was exchanged until it is allowed to let go."""

    def __init__(self) -> None:
        self.allowed = threading.Event()
        self._exchanged: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def add_one(self, tensor: Tensor, *, times: int = 1) -> None:
        tensor.memory[0] += times
        self._exchanged.put(tensor)

    def _run(self) -> None:
        held = self._exchanged.get()
        self.allowed.wait()
        del held

    def end(self) -> None:
        self.allowed.set()
        self._exchanged.put(None)
        self._thread.join()


@pytest.fixture
def group() -> Iterator[Group]:
    group = Group()
    yield group
    group.end()


def test_an_exchange_fills_the_tensor_itself(group: Group) -> None:
    tensor = Tensor([1])

    lending.exchange(group.add_one, tensor, times=2)

    assert tensor.memory == [3]


def test_the_wait_lasts_until_the_thread_has_let_go(group: Group) -> None:
    lending.exchange(group.add_one, Tensor([1]))
    in_vain = lending.wait_for_threads(0.01)
    group.allowed.set()

    assert not in_vain
    assert lending.wait_for_threads(60)


def test_what_failed_is_not_waited_for() -> None:
    kept = []

    def fail(tensor: Tensor) -> None:
        kept.append(tensor)
        raise RuntimeError("the others are gone")

    with pytest.raises(RuntimeError, match="gone"):
        lending.exchange(fail, Tensor([1]))

    assert lending.wait_for_threads(0)


def test_one_group_is_kept() -> None:
    lending.keep_group("first")
    lending.keep_group("second")

    assert lending._kept == ["second"]
    lending._kept.clear()
