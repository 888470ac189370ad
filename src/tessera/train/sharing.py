"""Sharing of a device with other jobs: gates for a guest, and the phase of a holder.

Nothing has to be called in a script that uses `Loop` or `LogicalWorkers`: a guest waits between
two steps, and a holder shows when it uses the device. Other loops wrap each step:

>>> for batch in sharing.wrap_loader(loader):
...     with sharing.step():
...         train(batch)

With PyTorch, `attach` adds gates before the modules of a model, which cost the holder less.
Outside a job, and on a device that is not shared, all of this costs microseconds.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterable, Iterator, Optional

from tessera.node.sharing import files
from tessera.node.system import boot_clock
from tessera.train.guest_gate import Gate


class HolderPhase:
    """The phase page of a holder.

    Args:
        path: the file.
        clock: the node's boot clock, in seconds.
    """

    def __init__(self, path: str, clock: Callable[[], float] = boot_clock) -> None:
        self._page = files.PhasePage(path, create=True)
        self._clock = clock
        self._is_busy: Optional[bool] = None
        self._since = self._gap = 0.0

    def change(self, *, busy: bool) -> bool:
        """Store whether the holder uses the device; returns whether it did before."""
        before = bool(self._is_busy)
        if busy is not self._is_busy:
            now = self._clock()
            if busy and self._is_busy is False:
                self._gap = now - self._since
            self._is_busy, self._since = busy, now
            self._page.write(busy=busy, now=now, gap=self._gap)
        return before


_gates: Dict[str, Gate] = {}
_phases: Dict[str, Optional[HolderPhase]] = {}


def gate() -> Optional[Gate]:
    """Return the gate of this process; None if its job is not a guest."""
    path = os.environ.get("TESSERA_JOB_BOUND")
    if not path:
        return None
    if path not in _gates:
        _gates[path] = Gate(path)
    return _gates[path]


def _phase() -> Optional[HolderPhase]:
    path = os.environ.get("TESSERA_JOB_PHASE")
    if not path:
        return None
    if path not in _phases:
        try:
            _phases[path] = HolderPhase(path)
        except (OSError, ValueError):
            _phases[path] = None  # a full disk must not end the training
    return _phases[path]


def begin_step() -> None:
    """Begin a step: a guest waits at its gate, and a holder is busy from here on."""
    own = gate()
    if own is not None and own.listens == "step":
        own.wait()
    phase = _phase()
    if phase is not None:
        phase.change(busy=True)


def end_step() -> None:
    """End a step: a holder does not use the device until the next one begins."""
    own = gate()
    if own is not None and own.listens == "step":
        own.end_step()
    phase = _phase()
    if phase is not None:
        phase.change(busy=False)


@contextmanager
def step() -> Iterator[None]:
    """Run one step of a training: a gate before it, and the phase of the holder around it."""
    begin_step()
    try:
        yield
    finally:
        end_step()


@contextmanager
def waiting() -> Iterator[None]:
    """Report that the holder uses no device: it waits for input, a disk or another process."""
    phase = _phase()
    before = phase.change(busy=False) if phase is not None else False
    try:
        yield
    finally:
        if phase is not None and before:
            phase.change(busy=True)


@contextmanager
def busy() -> Iterator[None]:
    """Let a guest pass all gates inside, for at most 200 ms: a collective, a captured graph."""
    own = gate()
    if own is None:
        yield
        return
    with own.held_open():
        yield


def wrap_loader(loader: Iterable[Any]) -> Iterator[Any]:
    """Yield the items of a loader; the holder waits meanwhile."""
    items = iter(loader)
    while True:
        with waiting():
            try:
                item = next(items)
            except StopIteration:
                return
        yield item


def attach(model: Any, optimizer: Any = None) -> Any:
    """Add gates and the memory bound to a PyTorch model; no effect if the job is not a guest.

    Args:
        model: a ``torch.nn.Module``.
        optimizer: its optimizer, whose state counts as memory that stays on the device.

    Returns:
        A handle; its ``close`` removes the gates.
    """
    from tessera.train.gates import Attachment  # noqa: PLC0415 - imports PyTorch

    return Attachment(gate(), model, optimizer)
