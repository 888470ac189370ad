"""Training loop for any script: resumes from the last checkpoint and reads control files.

It is for scripts with their own training, in NumPy, plain PyTorch or its DistributedDataParallel.
Between two steps it saves a due checkpoint, waits for the throttle, and ends on a notice to
leave, in all processes after the same step.
"""

from __future__ import annotations

import sys
import time
from typing import Any, Callable, Iterator, Optional

from tessera.train import control, sharing
from tessera.train.checkpoints import checkpoint, resume
from tessera.train.lending import exchange, keep_group, wait_for_threads
from tessera.train.reports import report


class Loop:
    """Iterator over the remaining steps.

    >>> loop = Loop(1000, save=state, load=take_up, every=100)
    >>> for step in loop:
    ...     loop.report(loss=train_one_batch(), samples=64)

    Args:
        steps: number of steps of the whole training.
        save: returns the state that the next step depends on, for `checkpoint`.
        load: restores the result of `save`.
        every: steps between checkpoints; 0 saves only when the job leaves, and at the end.
        agree: returns whether any process has a notice to leave, given the state of this one; if
            None, the processes of PyTorch's process group exchange it.

    Attributes:
        left: whether the loop ended because of a notice to leave.
    """

    def __init__(
        self,
        steps: int,
        *,
        save: Callable[[], Any],
        load: Callable[[Any], None],
        every: int = 0,
        agree: Optional[Callable[[bool], bool]] = None,
    ) -> None:
        self.left = False
        self._steps, self._every = steps, every
        self._save, self._load = save, load
        self._agree = agree or _any_process
        self._step, self._began = 0, 0.0

    def __iter__(self) -> Iterator[int]:
        group = _group()
        if group is not None:
            keep_group(group.group.WORLD)
        found = _farthest(resume())
        self._step = 0
        if found is not None:
            self._step = int(found["step"])
            self._load(found["state"])
        try:
            yield from self._turns()
        finally:
            wait_for_threads()  # the script may now free the group

    def _turns(self) -> Iterator[int]:
        while self._step < self._steps:
            sharing.begin_step()
            self._began = time.perf_counter()
            yield self._step
            worked = time.perf_counter() - self._began
            sharing.end_step()
            self._step += 1
            self.left = self._agree(control.should_yield())
            ended = self.left or self._step == self._steps
            if ended or (self._every and self._step % self._every == 0):
                checkpoint({"step": self._step, "state": self._save()}, step=self._step)
            if self.left:
                return
            control.pause(worked)

    def report(
        self, *, loss: Optional[float] = None, samples: Optional[float] = None, **metrics: Any
    ) -> None:
        """Report the present step, with its duration and the number of steps of the loop.

        Args:
            loss: loss of the step.
            samples: number of samples of this process.
            metrics: further numbers for charts, by name.
        """
        seconds = time.perf_counter() - self._began
        report(
            step=self._step,
            samples=samples,
            step_seconds=seconds,
            loss=loss,
            total_steps=self._steps,
            **metrics,
        )


def _group() -> Any:
    """Return PyTorch's module of process groups, if this process is in one."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed


def _farthest(found: Any) -> Any:
    """Return the newest checkpoint of all processes, since nodes may not share a directory."""
    if _group() is None:
        return found
    from tessera.train.peers import newest  # noqa: PLC0415 - PyTorch is there

    return newest((0 if found is None else int(found["step"]), ""), found)


def _any_process(asked: bool) -> bool:
    """Return whether any process of PyTorch's group set the flag; without a group, this one."""
    distributed, torch = _group(), sys.modules.get("torch")
    if distributed is None or torch is None:
        return asked
    device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
    flag = torch.tensor([float(asked)], device=device)
    exchange(distributed.all_reduce, flag, op=distributed.ReduceOp.MAX)
    return bool(flag.item() > 0)
