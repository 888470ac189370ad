"""Tensor parallelism: linear layers divided over the processes of a replica.

A column-wise layer holds a part of its outputs, a row-wise layer a part of its inputs (Shoeybi et
al., arXiv 1909.08053, section 3). A column-wise layer is followed by a row-wise one, with only
element-wise operations or whole attention heads between them. Needs PyTorch.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, Tuple, Type

import torch
from torch import distributed, nn
from torch.nn import functional

from tessera.train.hybrid.plans import PlanError
from tessera.train.lending import exchange

COLUMN, ROW = "column", "row"
Split = Mapping[Type[nn.Module], Mapping[str, str]]
"""By class of layer: names of its linear modules, each with ``column`` or ``row``."""


class LoneGroup:
    """Stands for the processes of a replica in a profile on one device: counts their exchanges.

    Attributes:
        exchanges: number of exchanges by direction and bytes.
    """

    def __init__(self) -> None:
        self.exchanges: Dict[Tuple[bool, int], int] = {}


def _add_up(total: torch.Tensor, group: Any, *, is_backward: bool = False) -> None:
    if isinstance(group, LoneGroup):
        key = is_backward, total.numel() * total.element_size()
        group.exchanges[key] = group.exchanges.get(key, 0) + 1
    else:
        exchange(distributed.all_reduce, total, group=group)


class _Enter(torch.autograd.Function):  # type: ignore[misc]
    """Give each process the whole input; the gradients of all parts are added up."""

    @staticmethod
    def forward(context: Any, inputs: torch.Tensor, group: Any) -> torch.Tensor:
        context.group = group
        return inputs.view_as(inputs)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        total = gradients[0].contiguous().clone()
        _add_up(total, context.group, is_backward=True)
        return total, None


class _Leave(torch.autograd.Function):  # type: ignore[misc]
    """Add up the outputs of all processes; each part gets the whole gradient."""

    @staticmethod
    def forward(_context: Any, part: torch.Tensor, group: Any) -> torch.Tensor:
        total = part.contiguous().clone()
        _add_up(total, group)
        return total

    @staticmethod
    def backward(_context: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0], None


class SplitLinear(nn.Module):  # type: ignore[misc]
    """A part of a linear layer.

    Args:
        whole: the undivided layer.
        way: ``column`` or ``row``.
        part: index of this part.
        parts: number of parts.
        group: the processes of the replica.
    """

    def __init__(self, whole: nn.Linear, way: str, part: int, parts: int, group: Any) -> None:
        super().__init__()
        self._is_column, self._group = way == COLUMN, group
        weight = whole.weight.detach().chunk(parts, 0 if self._is_column else 1)[part]
        self.weight = nn.Parameter(weight.clone(), requires_grad=whole.weight.requires_grad)
        self.bias: Optional[nn.Parameter] = None
        if whole.bias is not None:
            bias = whole.bias.detach()
            bias = bias.chunk(parts)[part] if self._is_column else bias
            self.bias = nn.Parameter(bias.clone(), requires_grad=whole.bias.requires_grad)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Apply the part; returns a part of the outputs, or all of them for ``row``."""
        if self._is_column:
            return functional.linear(_Enter.apply(inputs, self._group), self.weight, self.bias)
        total: torch.Tensor = _Leave.apply(functional.linear(inputs, self.weight), self._group)
        return total if self.bias is None else total + self.bias

    def split_dimensions(self) -> Dict[str, int]:
        """Return the divided dimension of each divided parameter."""
        if not self._is_column:
            return {"weight": 1}
        return {"weight": 0} if self.bias is None else {"weight": 0, "bias": 0}


def split_layer(
    layer: nn.Module, split: Split, part: int, parts: int, group: Any
) -> Dict[str, int]:
    """Replace the linear modules of a layer that ``split`` names by their parts.

    Returns:
        The divided dimension by parameter name within the layer; empty with one part.

    Raises:
        PlanError: a name is unknown or not a linear module, or its size does not divide.
    """
    found: Dict[str, int] = {}
    if parts == 1:
        return found
    for name, way in split.get(type(layer), {}).items():
        kind = type(layer).__name__
        try:
            whole = layer.get_submodule(name)
        except AttributeError:
            raise PlanError(f"{kind} has no module {name!r}: use a linear module") from None
        if type(whole) is not nn.Linear or way not in (COLUMN, ROW):
            raise PlanError(f"{kind}.{name}: only nn.Linear can be split, by {COLUMN} or {ROW}")
        size = whole.out_features if way == COLUMN else whole.in_features
        if size % parts:
            raise PlanError(f"{kind}.{name} has size {size}, which does not divide by {parts}")
        parent, _, last = name.rpartition(".")
        divided = SplitLinear(whole, way, part, parts, group)
        setattr(layer.get_submodule(parent), last, divided)
        found.update({f"{name}.{own}": dim for own, dim in divided.split_dimensions().items()})
    return found
