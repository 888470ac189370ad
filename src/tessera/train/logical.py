"""Training by logical workers: equal bits on any number of devices (EasyScale, SC'23, 3.2-3.3).

A job has a fixed number of logical workers, each with its own share of every batch, its own
generators and its own buffers (running statistics of batch normalisation). A process runs its
workers one after the other and switches their context in between. Gradients
are summed by a tree over the logical workers (`tessera.train.reduction`), so parameters after a
step depend on the workers and not on the processes. Needs PyTorch.
"""

from __future__ import annotations

import io
import os
import time
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence

import torch

from tessera.train import control, determinism, randomness, reduction, sharing
from tessera.train.checkpoints import Saver
from tessera.train.codec import read_state, write_state
from tessera.train.elastic import Elastic, ResumeError
from tessera.train.reports import report, report_event
from tessera.train.workers import Contexts, Feed

VERSION = 1
Gradients = List[torch.Tensor]


class LogicalWorkers(Elastic):
    """Trains a model by logical workers.

    >>> elastic = LogicalWorkers(model, optimizer, feed, workers=8)
    >>> for step in elastic.steps(1000):
    ...     loss = elastic.step(lambda batch: cross_entropy(model(batch[0]), batch[1]))

    Args:
        model: created with the same seed in all processes, on its device, and not wrapped by DDP.
        optimizer: optimizer of its parameters. Random draws must come from a generator that all
            processes share.
        feed: the workers' batches.
        workers: number of logical workers, for any number of processes; from the
            job's environment if None.
        seed: seed of all generators.
        scheduler: scheduler of the learning rate, stepped after every step.
        layout: initial number of workers of each process; if None, the control plane's,
            or spread evenly.
        level: determinism level D0, D1 or D2; None for the job's environment, or D1.
        threads: threads of each operation on a CPU.
        before_update: called with gradients in place before the optimizer, to clip them.
        extra: the caller's own state for checkpoints.
        saver: saver of checkpoints; the job's own if None.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        feed: Feed,
        *,
        workers: Optional[int] = None,
        seed: int = 0,
        scheduler: Any = None,
        layout: Optional[Sequence[int]] = None,
        level: Optional[str] = None,
        threads: int = 1,
        before_update: Optional[Callable[[], None]] = None,
        extra: Optional[Dict[str, Any]] = None,
        saver: Optional[Saver] = None,
    ) -> None:
        super().__init__(model, optimizer, scheduler=scheduler, saver=saver)
        self.feed, self.seed, self._before_update = feed, seed, before_update
        self.workers = _workers_of_the_job() if workers is None else workers
        self.extra: Dict[str, Any] = {} if extra is None else extra
        level = level or os.environ.get("TESSERA_JOB_DETERMINISM") or "D1"
        self.settings = determinism.settle(
            level, threads=threads, model=model, reports_result=self.peers.rank == 0
        )
        self._next_counts: List[int] = []
        self._hold(self._first_counts(layout))
        self._contexts = Contexts(model, self.held, seed)
        self._watch = determinism.watch(level, reports_result=self.peers.rank == 0)
        self._start()
        self._report_layout()

    # -- the layout ------------------------------------------------------------------------------

    def _first_counts(self, layout: Optional[Sequence[int]]) -> List[int]:
        if layout is not None:
            return reduction.check_counts(layout, self.workers, self.peers.size)
        wanted = self.peers.agree(self._wanted_counts(control.starting_layout()))
        return _whole_numbers(wanted) or reduction.spread(self.workers, self.peers.size)

    def _wanted_counts(self, layout: Optional[control.Layout]) -> List[float]:
        """Return this process's contribution to the layout, entry by entry; zeros for none.

        Only the first process contributes, and only layouts that fit.
        """
        counts = [count for member in layout or [] for count in member]
        speaks = self.peers.rank == 0 and len(counts) == self.peers.size
        if not speaks or sum(counts) != self.workers:
            return [0.0] * self.peers.size
        return [float(count) for count in counts]

    def _hold(self, counts: Sequence[int]) -> None:
        self._counts = list(counts)
        self._spans = reduction.spans(counts)
        self.held = range(*self._spans[self.peers.rank])

    def _between(self) -> None:
        """Move workers between processes after a change of layout; no step is lost."""
        if self._next_counts in ([], self._counts):
            return
        contexts = self._gathered()
        self._hold(self._next_counts)
        self._contexts.hold(self.held, contexts)
        self._open()
        self._report_layout()

    def _report_layout(self) -> None:
        if self.peers.rank == 0:
            report_event("layout", step=self.done, counts=self._counts)

    # -- steps -----------------------------------------------------------------------------------

    def steps(self, total: int, *, every: int = 0) -> Iterator[int]:
        """Yield the step numbers from the last checkpoint up to `total`.

        A checkpoint is saved every ``every`` steps (0 for never), on a notice to leave
        (then the loop ends), and after the last step. At the end the model has the buffers of the
        first worker in all processes.
        """
        yield from self._turns(lambda: self.done >= total, every)
        self.show()

    def show(self, worker: int = 0) -> None:
        """Load the buffers of one worker into the model in all processes, for evaluation or
        export.

        To be called by all processes; `steps` does so for the first worker when it ends. Between
        steps each process has those of the first worker that it holds.
        """
        contexts = self._gathered()
        self._contexts.lend(contexts[worker])

    def _gathered(self) -> List[Any]:
        """Gather the contexts of all workers from all processes."""
        own = io.BytesIO()
        write_state(self._contexts.kept(), own)
        return _joined(self.peers.gather_all(own.getvalue()))

    def _open(self) -> None:
        held = list(self.held)
        self._batches = self.feed.batches(self.done, held, self.workers) if held else iter(())

    def step(self, forward: Callable[[Any], torch.Tensor]) -> float:
        """Run every worker once and update the parameters; to be called in the loop of `steps`.

        Args:
            forward: returns the mean loss of one worker's batch; called once per local worker.

        Returns:
            The mean loss over all logical workers, the same in all processes.
        """
        sharing.begin_step()
        began = time.perf_counter()
        sums = reduction.Accumulator[Gradients](self.workers, _add)
        losses = []
        with self._contexts.switching(), self._watch():
            for worker in self.held:
                self._contexts.enter(worker)
                loss = forward(next(self._batches))
                loss.backward()
                self._contexts.leave(worker)
                losses.append(loss.detach())
                sums.push(worker, self._take_gradients())
        met = time.perf_counter()
        mean = self._settle(losses)
        gradients = self._total(sums.take())
        sync = time.perf_counter() - met
        self._update(gradients)
        seconds = self._finish_step(began)
        sharing.end_step()
        report(
            step=self.done - 1,
            samples=self.feed.batch_size * len(self.held),
            step_seconds=seconds,
            sync_seconds=sync if self.peers.size > 1 else 0.0,
            loss=mean,
        )
        return mean

    def _take_gradients(self) -> Gradients:
        taken = []
        for parameter in self._parameters:
            gradient = parameter.grad
            taken.append(torch.zeros_like(parameter) if gradient is None else gradient)
            parameter.grad = None
        return taken

    def _settle(self, losses: List[torch.Tensor]) -> float:
        """Return the mean loss; also exchanges a notice and the requested layout."""
        numbers = [0.0] * self.workers
        for worker, loss in zip(self.held, losses):
            numbers[worker] = float(loss)
        wanted = self._wanted_counts(control.settings().layout)
        found = self.peers.agree([*numbers, float(control.should_yield()), *wanted])
        self._leaving = found[self.workers] > 0
        self._next_counts = _whole_numbers(found[self.workers + 1 :])
        return sum(found[: self.workers]) / self.workers

    def _total(self, sums: Dict[reduction.Span, Gradients]) -> Gradients:
        """Return the sum over all workers, from the roots of all processes."""
        if self.peers.size > 1:
            for owner, span in enumerate(self._spans):
                for root in reduction.roots(span, self.workers):
                    sums[root] = self._shared(sums.get(root), owner)
        return reduction.total(sums, self.workers, _add)

    def _shared(self, gradients: Optional[Gradients], owner: int) -> Gradients:
        """Broadcast the sum of a root from its owner to all processes, and return it."""
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
            state = self._state(_joined(brought))
            self._saver.save(self.done, state, receipt=self._receipt(state))
        self.peers.wait()

    def _state(self, contexts: List[Any]) -> Dict[str, Any]:
        """Return the state that the next step depends on, independent of the layout."""
        return {
            "version": VERSION,
            "step": self.done,
            "workers": self.workers,
            "seed": self.seed,
            "settings": self.settings,
            "feed": self.feed.describe(self.workers),
            "parameters": dict(zip(self._names, self._parameters)),
            **self._rules(),
            "contexts": contexts,
            "shared": randomness.portable(randomness.capture()),
            "extra": self.extra,
        }

    def _receipt(self, state: Mapping[str, Any]) -> Dict[str, Any]:
        """Return data for comparing two runs, in addition to the hash of the checkpoint."""
        return {"seed": self.seed, "logical_workers": self.workers, **state["settings"]}

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
                    " remove the checkpoints to start from the beginning"
                )
        if list(state["parameters"]) != self._names:
            raise ResumeError("the checkpoint belongs to a model with other parameters")
        with torch.no_grad():
            for name, parameter in zip(self._names, self._parameters):
                parameter.copy_(state["parameters"][name])
        self._take_up_rules(state)
        self._contexts.take_up(state["contexts"])
        randomness.restore(randomness.from_portable(state["shared"]))
        self.extra.clear()
        self.extra.update(state["extra"])
        self.done = int(state["step"])


def _workers_of_the_job() -> int:
    """Read the number of logical workers from the job's environment.

    Raises:
        ValueError: the variable is missing.
    """
    said = os.environ.get("TESSERA_JOB_LOGICAL_WORKERS", "")
    if not said.isdigit() or int(said) < 1:
        raise ValueError("specify the number of logical workers, such as workers=8")
    return int(said)


def _joined(parts: Sequence[bytes]) -> List[Any]:
    """Join the contexts of all workers, from the parts of the processes in order."""
    return [one for part in parts for one in read_state(io.BytesIO(part))]


def _whole_numbers(numbers: Sequence[float]) -> List[int]:
    """Parse a layout received from the network; empty if none was requested."""
    return [int(number) for number in numbers] if any(numbers) else []


def _add(left: Gradients, right: Gradients) -> Gradients:
    torch._foreach_add_(left, right)
    return left
