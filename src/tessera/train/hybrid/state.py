"""Collects the whole state of a training from its processes, and gives each process its part.

The collected state does not depend on the parallel plan, so a training can resume under another
plan. Needs PyTorch.
"""

from __future__ import annotations

import io
from typing import Any, Dict, List, Mapping, Optional, Tuple

import torch
from torch import distributed

from tessera.train.codec import read_state, write_state
from tessera.train.hybrid.plans import ParallelPlan, Place

State = Dict[str, Any]
Dimensions = Mapping[str, int]
"""The divided dimension of each divided parameter, by name."""


def collect(own: State, plan: ParallelPlan, place: Place) -> Optional[List[State]]:
    """Gather the states of all parts of all stages in the first process, in the order of ranks.

    Other replicas have equal states and send none.

    Args:
        own: state of this process, of values that `codec` can write.
        plan: the parallel plan.
        place: position of this process.

    Returns:
        The states; None except in the first process.
    """
    rank = plan.rank_of(place)
    if rank:
        if place.data == 0:
            _send(own, 0)
        return None
    sources = [other for other in range(1, plan.processes) if plan.place_of(other).data == 0]
    return [own, *(_receive(other) for other in sources)]


def share_out(parts: Optional[List[State]], owner: int) -> State:
    """Send each process its state; returns that of this process.

    Args:
        parts: the state of each process by rank; None except in the owner.
        owner: rank of the process that has the states.
    """
    if parts is None:
        return _receive(owner)
    own = distributed.get_rank() if distributed.is_initialized() else 0
    for rank, part in enumerate(parts):
        if rank != own:
            _send(part, rank)
    return parts[own]


def merged(parts: List[State]) -> State:
    """Join the states of all processes to that of the undivided model."""
    whole: State = {"parameters": {}, "buffers": {}, "optimizer": {}}
    pieces: Dict[str, List[State]] = {}
    for part in parts:
        whole["buffers"].update(part["buffers"])
        for name in part["parameters"]:
            pieces.setdefault(name, []).append(part)
    for name, found in pieces.items():
        dimension = found[0]["dimensions"].get(name)
        values = [part["parameters"][name] for part in found]
        whole["parameters"][name] = _joined(values, dimension)
        states = [part["optimizer"].get(name) for part in found]
        if states[0] is not None:
            shape = tuple(values[0].shape)
            whole["optimizer"][name] = {
                key: _joined(
                    [state[key] for state in states if state is not None],
                    dimension if is_divided_like(value, shape) else None,
                )
                for key, value in states[0].items()
            }
    return whole


def _joined(pieces: List[Any], dimension: Optional[int]) -> Any:
    """Join the parts of a value that the processes of a replica hold."""
    if dimension is None or len(pieces) == 1:
        return pieces[0]
    return torch.cat(pieces, dimension)


def part_of(whole: torch.Tensor, dimension: Optional[int], part: int, parts: int) -> torch.Tensor:
    """Return the part of a tensor that one process of a replica holds."""
    if dimension is None or parts == 1:
        return whole
    return whole.chunk(parts, dimension)[part]


def optimizer_state(
    optimizer: torch.optim.Optimizer, names: Mapping[torch.nn.Parameter, str]
) -> Dict[str, State]:
    """Return the optimizer's state of each parameter by its name."""
    return {
        name: {key: _detached(value) for key, value in optimizer.state[parameter].items()}
        for parameter, name in names.items()
        if parameter in optimizer.state
    }


def group_settings(optimizer: torch.optim.Optimizer) -> List[State]:
    """Return the settings of the parameter groups, such as the learning rate."""
    return [
        {key: value for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]


def is_divided_like(value: Any, whole: Tuple[int, ...]) -> bool:
    """Return whether a value of an optimizer has an entry for each entry of the parameter."""
    return isinstance(value, torch.Tensor) and tuple(value.shape) == whole and value.dim() > 0


def _detached(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value


def _send(state: State, rank: int) -> None:
    file = io.BytesIO()
    write_state(state, file)
    content = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
    # The default group exchanges tensors in host memory by gloo, on GPUs, too.
    distributed.send(torch.tensor([content.numel()]), rank)
    distributed.send(content, rank)


def _receive(rank: int) -> State:
    size = torch.zeros(1, dtype=torch.int64)
    distributed.recv(size, rank)
    content = torch.empty(int(size.item()), dtype=torch.uint8)
    distributed.recv(content, rank)
    state: State = read_state(io.BytesIO(content.numpy().tobytes()))
    return state
