"""Training by logical workers: the same bits on however many devices (EasyScale, SC'23, 3.2-3.3).

A job has a fixed number of logical workers, each with its own share of every batch, its own
generators and its own buffers (running statistics of batch normalisation). A process runs the
ones that it holds one after the other and switches their context between two of them. Gradients
are summed by a tree over the logical workers (`tessera.train.reduction`), so parameters after a
step depend on the workers and not on the processes. Needs PyTorch.
"""

from __future__ import annotations

import io
import time
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence

import torch

from tessera.train import control, determinism, randomness, reduction
from tessera.train.codec import read_state, write_state
from tessera.train.contexts import Contexts
from tessera.train.feeding import Feed
from tessera.train.peers import Peers
from tessera.train.reports import report
from tessera.train.saving import Saver

VERSION = 1
Gradients = List[torch.Tensor]


class ResumeError(RuntimeError):
    """A checkpoint belongs to another training than the one that is to go on from it."""


class LogicalWorkers:
    """Trains a model by logical workers.

    >>> elastic = LogicalWorkers(model, optimizer, feed, workers=8)
    >>> for step in elastic.steps(1000):
    ...     loss = elastic.step(lambda batch: cross_entropy(model(batch[0]), batch[1]))

    Args:
        model: made with the same seed in all processes, on its device, and not wrapped by DDP.
        optimizer: of its parameters. One that draws at random draws from a generator that all
            processes share.
        feed: what the workers learn from.
        workers: how many logical workers there are, whatever the number of processes.
        seed: of all generators.
        scheduler: of the learning rate, stepped after every step.
        layout: how many workers each process holds; spread evenly if None.
        level: of determinism, D0, D1 or D2.
        threads: of each operation on a CPU.
        before_update: called with gradients in place before the optimizer, to clip them.
        extra: state of the caller's own, kept in checkpoints.
        saver: where checkpoints go; the job's own place if None.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        feed: Feed,
        *,
        workers: int,
        seed: int = 0,
        scheduler: Any = None,
        layout: Optional[Sequence[int]] = None,
        level: str = "D1",
        threads: int = 1,
        before_update: Optional[Callable[[], None]] = None,
        extra: Optional[Dict[str, Any]] = None,
        saver: Optional[Saver] = None,
    ) -> None:
        self.model, self.optimizer, self.feed, self.scheduler = model, optimizer, feed, scheduler
        self.workers, self.seed = workers, seed
        self.extra: Dict[str, Any] = {} if extra is None else extra
        self.settings = determinism.settle(level, threads=threads, model=model)
        self._names, self._parameters = _trained(model)
        self.peers = Peers(self._parameters[0].device)
        counts = layout or reduction.spread(workers, self.peers.size)
        counts = reduction.check_counts(counts, workers, self.peers.size)
        self._spans = reduction.spans(counts)
        self.held = range(*self._spans[self.peers.rank])
        self._contexts = Contexts(model, self.held, seed)
        self._before_update = before_update
        self._saver = saver or Saver(leads=self.peers.rank == 0)
        self.done = 0
        """Steps done over the whole training."""
        self._leaving = False
        self._batches: Iterator[Any] = iter(())
        self._start()

    # -- steps -----------------------------------------------------------------------------------

    def steps(self, total: int, *, every: int = 0) -> Iterator[int]:
        """The numbers of the steps to do, from where the last checkpoint ends up to `total`.

        A checkpoint is saved every so many steps (0: never in between), when the job is asked to
        leave (then the loop ends), and after the last step.
        """
        held = list(self.held)
        self._batches = self.feed.batches(self.done, held, self.workers) if held else iter(())
        try:
            while self.done < total and not self._leaving:
                number = self.done
                yield number
                if self.done != number + 1:
                    raise RuntimeError("one call of `step` belongs to every turn of the loop")
                if self._leaving or self.done == total or (every and self.done % every == 0):
                    self.save()
        finally:
            self._batches = iter(())  # loading processes end now, not with the interpreter

    def step(self, forward: Callable[[Any], torch.Tensor]) -> float:
        """Run every worker once and update the parameters; to be called in the loop of `steps`.

        Args:
            forward: gives the mean loss of one worker's batch; called once for each worker held.

        Returns:
            The mean loss over all logical workers, the same in all processes.
        """
        began = time.perf_counter()
        sums = reduction.Accumulator[Gradients](self.workers, _add)
        losses = []
        with self._contexts.switching():
            for worker in self.held:
                self._contexts.enter(worker)
                loss = forward(next(self._batches))
                loss.backward()
                self._contexts.leave(worker)
                losses.append(loss.detach())
                sums.push(worker, self._take_gradients())
        mean = self._settle(losses)
        self._update(self._total(sums.take()))
        self.done += 1
        seconds = time.perf_counter() - began
        samples = self.feed.batch_size * len(self.held)
        report(step=self.done - 1, samples=samples, step_seconds=seconds, loss=mean)
        return mean

    def _take_gradients(self) -> Gradients:
        taken = []
        for parameter in self._parameters:
            gradient = parameter.grad
            taken.append(torch.zeros_like(parameter) if gradient is None else gradient)
            parameter.grad = None
        return taken

    def _settle(self, losses: List[torch.Tensor]) -> float:
        """The mean loss; whether anybody was asked to leave becomes known to all on the way."""
        numbers = [0.0] * (self.workers + 1)
        for worker, loss in zip(self.held, losses):
            numbers[worker] = float(loss)
        numbers[-1] = float(control.should_yield())
        *found, asked = self.peers.agree(numbers)
        self._leaving = asked > 0
        return sum(found) / self.workers

    def _total(self, sums: Dict[reduction.Span, Gradients]) -> Gradients:
        """The sum over all workers, from the roots of all processes."""
        if self.peers.size > 1:
            for owner, span in enumerate(self._spans):
                for root in reduction.roots(span, self.workers):
                    sums[root] = self._shared(sums.get(root), owner)
        return reduction.total(sums, self.workers, _add)

    def _shared(self, gradients: Optional[Gradients], owner: int) -> Gradients:
        """A root's sum, which its owner has, in all processes."""
        made: Gradients = [torch.empty(0)] * len(self._parameters)
        for places in self._places_by_type():
            of_type = [self._parameters[place] for place in places]
            if gradients is None:
                flat = of_type[0].new_empty(sum(one.numel() for one in of_type))
            else:
                flat = torch.cat([gradients[place].reshape(-1) for place in places])
            self.peers.share(flat, owner)
            parts = flat.split([one.numel() for one in of_type])
            for place, part, parameter in zip(places, parts, of_type):
                made[place] = part.view(parameter.shape)
        return made

    def _places_by_type(self) -> List[List[int]]:
        by_type: Dict[str, List[int]] = {}
        for place, parameter in enumerate(self._parameters):
            by_type.setdefault(str(parameter.dtype), []).append(place)
        return [by_type[name] for name in sorted(by_type)]

    def _update(self, gradients: Gradients) -> None:
        torch._foreach_div_(gradients, float(self.workers))
        for parameter, gradient in zip(self._parameters, gradients):
            parameter.grad = gradient
        if self._before_update is not None:
            self._before_update()
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        for parameter in self._parameters:
            parameter.grad = None

    # -- checkpoints -----------------------------------------------------------------------------

    def save(self) -> None:
        """Save a checkpoint at this step; to be called by all processes."""
        own = io.BytesIO()
        write_state(self._contexts.kept(), own)
        brought = self.peers.gather(own.getvalue())
        if brought is not None:
            contexts = [one for part in brought for one in read_state(io.BytesIO(part))]
            state = self._state(contexts)
            self._saver.save(self.done, state, receipt=self._receipt(state))
        self.peers.wait()

    def _state(self, contexts: List[Any]) -> Dict[str, Any]:
        """Everything that the next step depends on, and nothing of who holds what."""
        return {
            "version": VERSION,
            "step": self.done,
            "workers": self.workers,
            "seed": self.seed,
            "settings": self.settings,
            "feed": self.feed.describe(self.workers),
            "parameters": dict(zip(self._names, self._parameters)),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "contexts": contexts,
            "shared": randomness.portable(randomness.capture()),
            "extra": self.extra,
        }

    def _receipt(self, state: Mapping[str, Any]) -> Dict[str, Any]:
        """What two runs are compared by, beside the hash of the checkpoint."""
        return {"seed": self.seed, "logical_workers": self.workers, **state["settings"]}

    def _start(self) -> None:
        """Go on from the newest checkpoint, or begin with the parameters of the first process."""
        found = self._saver.load()
        if not self.peers.all_at(found[0].step if found else 0):
            raise ResumeError("the processes found checkpoints of different steps")
        if found is not None:
            self._take_up(found[1])
        else:
            with torch.no_grad():
                for parameter in self._parameters:
                    self.peers.share(parameter, 0)

    def _take_up(self, state: Mapping[str, Any]) -> None:
        expected = {
            "version": VERSION,
            "workers": self.workers,
            "seed": self.seed,
            "feed": self.feed.describe(self.workers),
        }
        for name, value in expected.items():
            if state.get(name) != value:
                raise ResumeError(
                    f"{name} is {value!r} here and {state.get(name)!r} in the checkpoint;"
                    " remove the checkpoints to begin anew"
                )
        if list(state["parameters"]) != self._names:
            raise ResumeError("the checkpoint is of a model with other parameters")
        with torch.no_grad():
            for name, parameter in zip(self._names, self._parameters):
                parameter.copy_(state["parameters"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        self._contexts.take_up(state["contexts"])
        randomness.restore(randomness.from_portable(state["shared"]))
        self.extra.clear()
        self.extra.update(state["extra"])
        self.done = int(state["step"])


def _trained(model: torch.nn.Module) -> "tuple[List[str], List[torch.nn.Parameter]]":
    """Names and values of the parameters that are trained, in the model's order.

    Raises:
        ValueError: there are none.
    """
    named = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
    if not named:
        raise ValueError("the model has no parameters to train")
    return [name for name, _ in named], [one for _, one in named]


def _add(left: Gradients, right: Gradients) -> Gradients:
    torch._foreach_add_(left, right)
    return left
