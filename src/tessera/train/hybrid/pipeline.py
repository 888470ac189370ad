"""Runs the passes of one stage: receives, computes and sends micro-batches in the plan's order.

Neighbouring stages may have any numbers of replicas and parts: `plans.transfers_of` names which
samples go from which process to which. Needs PyTorch.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch import distributed, nn
from torch.utils.checkpoint import checkpoint

from tessera.train import randomness
from tessera.train.hybrid.plans import Action, ParallelPlan, Place, actions_of, transfers_of

Feed = Callable[[int, range], Tuple[Any, Any]]
"""Inputs and targets of some samples of a step's batch, as tensors."""
Loss = Callable[[Any, Any], torch.Tensor]
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_HEADER = 10
"""Numbers that describe a message: data type, number of dimensions, sizes."""


class StageError(RuntimeError):
    """A layer returns a value that cannot be sent to the next stage."""


class Groups:
    """The process groups of a plan; every process creates all of them in the same order.

    Attributes:
        tensor: the processes of this replica.
        data: the processes with the same part in all replicas of this stage.
        forward, backward: all processes; one group for each direction between stages, so that
            messages of two processes have the same order on both sides.
    """

    def __init__(self, plan: ParallelPlan, place: Place) -> None:
        self.tensor: Any = None
        self.data: Any = None
        for index, stage in enumerate(plan.stages):
            for replica in range(stage.data):
                parts = [Place(index, replica, part) for part in range(stage.tensor)]
                self.tensor = self._group(plan, parts, place) or self.tensor
            for part in range(stage.tensor):
                replicas = [Place(index, replica, part) for replica in range(stage.data)]
                self.data = self._group(plan, replicas, place) or self.data
        several = len(plan.stages) > 1
        self.forward = distributed.new_group() if several else None
        self.backward = distributed.new_group() if several else None

    @staticmethod
    def _group(plan: ParallelPlan, places: Sequence[Place], own: Place) -> Any:
        if len(places) == 1:
            return None
        group = distributed.new_group([plan.rank_of(place) for place in places])
        return group if own in places else None


class Pipeline:
    """The passes of this process's stage.

    Args:
        plan: the parallel plan.
        place: position of this process.
        layers: modules of the stage by global number.
        loss: mean loss of some samples, from the last layer's output and the targets.
        groups: process groups of the plan.
        device: device of this process.
        dtype: data type of the passes (autocast); None for that of the parameters.
        recompute: whether layers store only their inputs and are computed again.
    """

    def __init__(
        self,
        plan: ParallelPlan,
        place: Place,
        layers: Dict[int, nn.Module],
        loss: Loss,
        groups: Groups,
        *,
        device: torch.device,
        dtype: Optional[torch.dtype],
        recompute: bool,
    ) -> None:
        self._plan, self._place, self._layers, self._loss = plan, place, layers, loss
        self._groups, self._device, self._dtype = groups, device, dtype
        self._recompute = recompute
        self._most_sending = max(2, len(plan.stages))
        self._is_first = place.stage == 0
        self._is_last = place.stage == len(plan.stages) - 1
        self._outward: Dict[bool, List[Tuple[int, range]]] = {}
        self._inward: Dict[bool, List[Tuple[int, range]]] = {}
        self._begin = place.data * (plan.samples // plan.stages[place.stage].data)
        for is_forward, step in ((True, 1), (False, -1)):
            self._outward[is_forward] = self._peers(place.stage + step, is_out=True)
            self._inward[is_forward] = self._peers(place.stage - step, is_out=False)
        self._shapes: Dict[int, Tuple[Tuple[int, ...], torch.dtype]] = {}
        self._sending: Dict[Action, List[Tuple[Any, torch.Tensor]]] = {}

    def _peers(self, other: int, *, is_out: bool) -> List[Tuple[int, range]]:
        """Return ranks of the other stage with their ranges of this process's samples."""
        if not 0 <= other < len(self._plan.stages):
            return []
        own = self._place
        ends = (own.stage, other) if is_out else (other, own.stage)
        found = []
        for transfer in transfers_of(self._plan, *ends):
            mine, peer = transfer.source, transfer.target
            if not is_out:
                mine, peer = peer, mine
            if mine == own:
                part = range(transfer.first - self._begin, transfer.last - self._begin)
                found.append((self._plan.rank_of(peer), part))
        return found

    # -- steps -----------------------------------------------------------------------------------

    def train(self, step: int, feed: Feed, *, seed: int, scale: float) -> torch.Tensor:
        """Run forward and backward passes of a batch; gradients are added to the parameters.

        Args:
            step: number of the step.
            feed: source of the samples.
            seed: seed of random draws in layers.
            scale: factor of the loss before its gradients are computed.

        Returns:
            The part of this process in the mean loss of the batch; 0 before the last stage.
        """
        total = torch.zeros((), dtype=torch.float64)
        waiting: Dict[int, Tuple[Optional[torch.Tensor], torch.Tensor]] = {}
        for action in actions_of(self._plan, self._place.stage):
            number = action.micro_batch
            if action.is_forward:
                inputs, output = self._forward(step, number, feed, seed=seed, is_training=True)
                if self._is_last:
                    total += output.detach().to("cpu", torch.float64)
                waiting[number] = (inputs, output)
            else:
                self._backward(action, *waiting.pop(number), scale=scale)
        self._finish_all()
        return total

    def evaluate(self, step: int, feed: Feed) -> torch.Tensor:
        """Run forward passes of a batch only; returns as `train`."""
        total = torch.zeros((), dtype=torch.float64)
        with torch.no_grad():
            for number in range(self._plan.micro_batches):
                _, output = self._forward(step, number, feed, seed=0, is_training=False)
                if self._is_last:
                    total += output.to("cpu", torch.float64)
        self._finish_all()
        return total

    def _forward(
        self, step: int, number: int, feed: Feed, *, seed: int, is_training: bool
    ) -> Tuple[Optional[torch.Tensor], torch.Tensor]:
        """Run a forward pass; returns the received inputs, if any, and output or loss."""
        samples = range(*self._samples(number))
        inputs: Any
        received: Optional[torch.Tensor] = None
        targets: Any = None
        if self._is_first or self._is_last:
            inputs, targets = feed(step, samples)
        if not self._is_first:
            inputs = received = self._receive(Action(True, number)).requires_grad_(is_training)
        else:
            inputs = _moved(inputs, self._device)
        with torch.autocast(self._device.type, dtype=self._dtype, enabled=self._dtype is not None):
            output = inputs
            for layer_number, layer in self._layers.items():
                if is_training:
                    randomness.seed_all(seed, step, samples.start, layer_number)
                output = self._apply(layer, output, is_training=is_training)
            if self._is_last:
                loss = self._loss(output, _moved(targets, self._device))
                return received, loss * (len(samples) / self._plan.batch)
        if not isinstance(output, torch.Tensor) or output.dtype not in _DTYPES:
            raise StageError(
                f"layer {self._plan.stages[self._place.stage].last - 1} does not return one"
                " floating-point tensor: end the stage after another layer"
            )
        self._send(Action(True, number), output.detach())
        return received, output

    def _apply(self, layer: nn.Module, inputs: Any, *, is_training: bool) -> Any:
        if self._recompute and is_training:
            return checkpoint(layer, inputs, use_reentrant=False)
        return layer(inputs)

    def _backward(
        self, action: Action, inputs: Optional[torch.Tensor], output: torch.Tensor, *, scale: float
    ) -> None:
        if self._is_last:
            (output * scale).backward()
        else:
            output.backward(self._receive(action))
        if inputs is not None:
            gradient = inputs.grad
            self._send(action, torch.zeros_like(inputs) if gradient is None else gradient)

    def _samples(self, number: int) -> Tuple[int, int]:
        """Return the samples of this process in a micro-batch, within the batch."""
        size = self._plan.samples // self._plan.stages[self._place.stage].data
        begin = number * self._plan.samples + self._begin
        return begin, begin + size

    # -- messages --------------------------------------------------------------------------------

    def _send(self, action: Action, tensor: torch.Tensor) -> None:
        group = self._groups.forward if action.is_forward else self._groups.backward
        for peer, part in self._outward[action.is_forward]:
            piece = tensor[part.start : part.stop].contiguous()
            if action.is_forward and action.micro_batch == 0:
                self._post(action, _header(piece, self._device), peer, group)
            self._post(action, piece, peer, group)
        if action.is_forward and action.micro_batch == 0:
            self._shapes[False] = (tuple(tensor.shape), tensor.dtype)
        # Tensors that are being sent take memory. The next stage has received this micro-batch
        # before it sends a gradient of it; a limit is needed for the others only.
        self._finish_sending(Action(action.is_forward, action.micro_batch - self._most_sending))

    def _post(self, action: Action, tensor: torch.Tensor, peer: int, group: Any) -> None:
        work = distributed.isend(tensor, peer, group=group)
        self._sending.setdefault(action, []).append((work, tensor))

    def _receive(self, action: Action) -> torch.Tensor:
        """Receive a micro-batch; its shape is sent before the first one of each step."""
        group = self._groups.forward if action.is_forward else self._groups.backward
        peers = self._inward[action.is_forward]
        if action.is_forward and action.micro_batch == 0:
            size = self._plan.samples // self._plan.stages[self._place.stage].data
            for peer, part in peers:
                header = torch.zeros(_HEADER, dtype=torch.int64, device=self._device)
                distributed.recv(header, peer, group=group)
                shape, dtype = _described(header)
                if shape[0] != len(part):
                    raise StageError("a layer changed the number of samples of its input")
                self._shapes[True] = ((size, *shape[1:]), dtype)
        shape, dtype = self._shapes[action.is_forward]
        whole = torch.empty(shape, dtype=dtype, device=self._device)
        works = []
        for peer, part in peers:
            works.append(distributed.irecv(whole[part.start : part.stop], peer, group=group))
        for work in works:
            work.wait()
        return whole

    def _finish_sending(self, action: Action) -> None:
        for work, _ in self._sending.pop(action, ()):
            work.wait()

    def _finish_all(self) -> None:
        for action in [*self._sending]:
            self._finish_sending(action)


def _header(piece: torch.Tensor, device: torch.device) -> torch.Tensor:
    if piece.dim() > _HEADER - 2:
        raise StageError(f"a tensor between stages has more than {_HEADER - 2} dimensions")
    numbers = [_DTYPES.index(piece.dtype), piece.dim(), *piece.shape]
    numbers += [0] * (_HEADER - len(numbers))
    return torch.tensor(numbers, dtype=torch.int64, device=device)


def _described(header: torch.Tensor) -> Tuple[Tuple[int, ...], torch.dtype]:
    kind, dimensions, *sizes = [int(number) for number in header.tolist()]
    return tuple(sizes[:dimensions]), _DTYPES[kind]


def _moved(value: Any, device: torch.device) -> Any:
    """Move a tensor, or the tensors of a list, tuple or mapping, to a device."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, (list, tuple)):
        return type(value)(_moved(one, device) for one in value)
    if isinstance(value, dict):
        return {name: _moved(one, device) for name, one in value.items()}
    return value
