"""Base of elastic training: steps, checkpoints, notices, pauses, and reports.

Needs PyTorch.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any, Callable, Dict, Iterator, Mapping, Optional

import torch

from tessera.train import control
from tessera.train.checkpoints import Saver
from tessera.train.lending import wait_for_threads
from tessera.train.memory import keep_freed_memory
from tessera.train.peers import Peers, newest
from tessera.train.reports import report_parameters


class ResumeError(ValueError):
    """A checkpoint belongs to another training job than the one to be resumed."""


class Turns(ABC):
    """The steps of a training, with checkpoints and control files between them.

    Attributes:
        done: steps done over the whole training.
    """

    def __init__(self) -> None:
        self.done = 0
        self._leaving = False
        self._batches: Iterator[Any] = iter(())
        self._worked_seconds = 0.0

    @abstractmethod
    def save(self) -> None:
        """Save a checkpoint at this step; to be called by all processes."""

    def _open(self) -> None:
        """Start loading batches from the current step on."""
        return

    def _between(self) -> None:
        """Apply the control plane's settings between two steps."""
        return

    def _turns(self, is_enough: Callable[[], bool], every: int) -> Iterator[int]:
        """Yield the step numbers; saves checkpoints and reads control files between them."""
        self._open()
        try:
            while not (self._leaving or is_enough()):
                number = self.done
                yield number
                if self.done != number + 1:
                    raise RuntimeError("call `step` exactly once per iteration of the loop")
                ended = self._leaving or is_enough()
                if ended or (every and self.done % every == 0):
                    self.save()
                if not ended:
                    self._between()
                    control.pause(self._worked_seconds)
        finally:
            self._batches = iter(())  # ends the loader processes now
            wait_for_threads()

    def _finish_step(self, began: float) -> float:
        """Count a step; return its duration in seconds."""
        self.done += 1
        self._worked_seconds = time.perf_counter() - began
        return self._worked_seconds


class Elastic(Turns):
    """A training whose processes may change at each checkpoint.

    Args:
        model: created with the same seed in all processes, on its device, and not wrapped by DDP.
        optimizer: optimizer of its parameters.
        scheduler: scheduler of the learning rate.
        saver: saver of checkpoints; the job's own if None.

    Attributes:
        peers: the processes of the training.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        scheduler: Any,
        saver: Optional[Saver],
    ) -> None:
        super().__init__()
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        named = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
        if not named:
            raise ValueError("the model has no parameters to train")
        self._names = [name for name, _ in named]
        self._parameters = [one for _, one in named]
        if self._parameters[0].device.type == "cpu":
            keep_freed_memory()
        self.peers = Peers(self._parameters[0].device)
        self._saver = saver or Saver(leads=self.peers.rank == 0)
        if self.peers.rank == 0:
            report_parameters(self._parameters)

    # -- implemented by the kinds of training ----------------------------------------------------

    @abstractmethod
    def _take_up(self, state: Mapping[str, Any]) -> None:
        """Resume from a checkpoint's state."""

    # -- checkpoints -----------------------------------------------------------------------------

    def _start(self) -> None:
        """Resume from the newest checkpoint, or start with the parameters of the first process."""
        found = self._saver.load()
        state = found[1] if found else None
        if self.peers.size > 1:
            state = newest((found[0].step, found[0].sha256) if found else (0, ""), state)
        if state is not None:
            self._take_up(state)
        else:
            with torch.no_grad():
                for parameter in self._parameters:
                    self.peers.share(parameter, 0)

    def _take_up_rules(self, state: Mapping[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])

    def _rules(self) -> Dict[str, Any]:
        """Return the state of optimizer and scheduler."""
        scheduler = self.scheduler
        return {
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if scheduler is None else scheduler.state_dict(),
        }
