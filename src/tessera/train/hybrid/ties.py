"""Parameters with one value in several layers, such as those of embedding and head.

Needs PyTorch.
"""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

import torch
from torch import distributed, nn

from tessera.train.hybrid.plans import ParallelPlan, Place, PlanError
from tessera.train.lending import exchange


class Ties:
    """Parameters with one value, in one stage or in several.

    Args:
        plan: the parallel plan.
        stage: stage of this process.
        tied: groups of names; the one in the first layer names the value in checkpoints.
        layers: layers of this process; copies within them become one parameter.
        dimensions: the divided parameters, which cannot be tied.
    """

    def __init__(
        self,
        plan: ParallelPlan,
        stage: int,
        tied: Sequence[Sequence[str]],
        layers: Dict[int, nn.Module],
        dimensions: Dict[str, int],
    ) -> None:
        in_order = [sorted(names, key=layer_of) for names in tied]
        self.all_copies = {copy: names[0] for names in in_order for copy in names[1:]}
        self._exchanged: List[Tuple[nn.Parameter, Any]] = []
        for names in in_order:
            divided = [name for name in names if name in dimensions]
            if divided:
                raise PlanError(f"{divided[0]} is tied and divided: remove it from `split`")
            stages = sorted({_stage_of(plan, name) for name in names})
            group = None
            if len(stages) > 1:
                group = distributed.new_group(
                    [r for r in range(plan.processes) if plan.place_of(r).stage in stages]
                )
            own = [name for name in names if _stage_of(plan, name) == stage]
            if not own:
                continue
            value = _parameter(layers, own[0])
            for name in own[1:]:
                _set_parameter(layers, name, value)
            if group is not None:
                # Each stage has created the value by itself: that of the first one counts.
                source = plan.rank_of(Place(stages[0], 0, 0))
                exchange(distributed.broadcast, value.data, src=source, group=group)
                self._exchanged.append((value, group))

    def is_copy(self, name: str) -> bool:
        """Return whether the value is saved and counted under another name."""
        return name in self.all_copies

    def first_of(self, name: str) -> str:
        """Return the name under which the value is saved."""
        return self.all_copies.get(name, name)

    def exchange_gradients(self, devices: int) -> None:
        """Add up the gradients of the stages; each process of a stage sends an equal part.

        Args:
            devices: processes of this stage, which have equal gradients.
        """
        for value, group in self._exchanged:
            gradient = gradient_of(value)
            gradient.div_(devices)
            exchange(distributed.all_reduce, gradient, group=group)


def gradient_of(parameter: nn.Parameter) -> torch.Tensor:
    """Return the gradient of a parameter; a missing one becomes 0."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def _parameter(layers: Dict[int, nn.Module], name: str) -> nn.Parameter:
    number, _, inner = name.partition(".")
    try:
        return layers[int(number)].get_parameter(inner)
    except (KeyError, ValueError, AttributeError):
        raise PlanError(f"no parameter {name!r}: tied names are <layer>.<parameter>") from None


def _set_parameter(layers: Dict[int, nn.Module], name: str, value: nn.Parameter) -> None:
    _parameter(layers, name)
    number, _, inner = name.partition(".")
    module, _, last = inner.rpartition(".")
    setattr(layers[int(number)].get_submodule(module), last, value)


def layer_of(name: str) -> int:
    """Return the number of the layer in the name of a parameter.

    Raises:
        PlanError: the name does not begin with a number.
    """
    number = name.partition(".")[0]
    if not number.isdigit():
        raise PlanError(f"no parameter {name!r}: tied names are <layer>.<parameter>")
    return int(number)


def _stage_of(plan: ParallelPlan, name: str) -> int:
    number = layer_of(name)
    for index, stage in enumerate(plan.stages):
        if number < stage.last:
            return index
    raise PlanError(f"no parameter {name!r}: the model has {plan.layers} layers")
