"""The layers of one process under a parallel plan, and their part of the whole model's state.

Needs PyTorch.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Sequence, Tuple, Union

import torch
from torch import nn

from tessera.train import randomness
from tessera.train.elastic import ResumeError
from tessera.train.hybrid.pipeline import Groups
from tessera.train.hybrid.plans import ParallelPlan, Place, PlanError, Stage
from tessera.train.hybrid.splitting import Split, split_layer
from tessera.train.hybrid.state import State, is_divided_like, optimizer_state, part_of
from tessera.train.hybrid.ties import Ties, gradient_of, layer_of

Layer = Union[nn.Module, Callable[[], nn.Module]]


class OwnLayers:
    """The layers of one stage, divided for one process, with tied parameters joined.

    Args:
        layers: all layers of the model, or functions that create them.
        split: linear modules to divide, by class of layer.
        tied: groups of parameters with one value.
        plan: the parallel plan.
        place: position of this process in it.
        groups: process groups of the position.
        device: device of the parameters.
        seed: seed of the functions that create layers.

    Attributes:
        modules: the layers by number.
        ties: the tied parameters.
        parameters: the parameters to train.

    Raises:
        PlanError: a layer is not supported, or a tied parameter is divided.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        *,
        split: Split,
        tied: Sequence[Sequence[str]],
        plan: ParallelPlan,
        place: Place,
        groups: Groups,
        device: torch.device,
        seed: int,
    ) -> None:
        self._stage, self._part = plan.stages[place.stage], place.tensor
        self._dimensions: Dict[str, int] = {}
        self._shapes: Dict[str, Tuple[int, ...]] = {}
        self.modules: Dict[int, nn.Module] = {}
        for number in range(self._stage.first, self._stage.last):
            layer = _created(layers[number], number, seed)
            for name, parameter in layer.named_parameters():
                self._shapes[f"{number}.{name}"] = tuple(parameter.shape)
            divided = split_layer(layer, split, self._part, self._stage.tensor, groups.tensor)
            self._dimensions.update({f"{number}.{name}": dim for name, dim in divided.items()})
            self.modules[number] = layer.to(device)
        self.ties = Ties(plan, place.stage, tied, self.modules, self._dimensions)
        self._names = _named_parameters(self.modules)
        self.parameters = [one for one in self._names if one.requires_grad]

    def square(self) -> float:
        """Return this process's summand of the squared norm of the gradient of a replica.

        Each entry of the gradient is counted in one process.
        """
        total = 0.0
        for parameter in self.parameters:
            name = self._names[parameter]
            if self.ties.is_copy(name) or (self._part and name not in self._dimensions):
                continue
            total += float(gradient_of(parameter).to(torch.float64).square().sum())
        return total

    def state(self, optimizer: torch.optim.Optimizer) -> State:
        """Return parameters, buffers, the optimizer's state, and the divided dimensions."""
        buffers = {
            f"{number}.{name}": value.detach().cpu()
            for number, layer in self.modules.items()
            for name, value in layer.state_dict().items()
            if name not in dict(layer.named_parameters(remove_duplicate=False))
        }
        names = {one: name for one, name in self._names.items() if not self.ties.is_copy(name)}
        return {
            "parameters": {name: one.detach().cpu() for one, name in names.items()},
            "buffers": buffers,
            "optimizer": optimizer_state(optimizer, names),
            "dimensions": self._dimensions,
        }

    def state_of(self, whole: State, stage: Stage) -> State:
        """Return the state of the layers of a stage, and what all stages have in common."""
        first_of = self.ties.all_copies
        wanted = {
            name for name in whole["parameters"] if stage.first <= layer_of(name) < stage.last
        }
        for copy, first in first_of.items():
            if stage.first <= layer_of(copy) < stage.last:
                wanted.add(first)
        return {
            **whole,
            "parameters": {name: whole["parameters"][name] for name in sorted(wanted)},
            "optimizer": {
                name: value for name, value in whole["optimizer"].items() if name in wanted
            },
            "buffers": {
                name: value
                for name, value in whole["buffers"].items()
                if stage.first <= layer_of(name) < stage.last
            },
        }

    def load_values(self, state: State) -> None:
        """Load this process's part of parameters and buffers.

        Raises:
            ResumeError: a parameter is missing or has another shape.
        """
        parts, part = self._stage.tensor, self._part
        with torch.no_grad():
            for parameter, name in self._names.items():
                whole = state["parameters"].get(self.ties.first_of(name))
                if whole is None or tuple(whole.shape) != self._shapes[name]:
                    raise ResumeError(
                        f"the parameter {name} of shape {list(self._shapes[name])} is missing or"
                        " has another shape: the checkpoint belongs to another model"
                    )
                parameter.copy_(part_of(whole, self._dimensions.get(name), part, parts))
            for number, layer in self.modules.items():
                for name, buffer in layer.named_buffers():
                    value = state["buffers"].get(f"{number}.{name}")
                    if value is not None:
                        buffer.copy_(value)

    def load_optimizer(self, state: State, optimizer: torch.optim.Optimizer) -> None:
        """Load this process's part of the optimizer's state, and the settings of its groups."""
        for parameter, name in self._names.items():
            saved = state["optimizer"].get(self.ties.first_of(name))
            if saved is not None:
                loaded = {
                    key: self._part_of_optimizer(value, name, parameter.device)
                    for key, value in saved.items()
                }
                optimizer.state[parameter].update(loaded)
        for group, settings in zip(optimizer.param_groups, state["groups"]):
            group.update(settings)

    def _part_of_optimizer(self, value: Any, name: str, device: torch.device) -> Any:
        if not is_divided_like(value, self._shapes[name]):
            return value
        part = part_of(value, self._dimensions.get(name), self._part, self._stage.tensor)
        return part.to(device).clone()


def _created(given: Layer, number: int, seed: int) -> nn.Module:
    """Return a layer, created if it is a function.

    Raises:
        PlanError: it contains BatchNorm.
    """
    if not isinstance(given, nn.Module):
        randomness.seed_all(seed, number)
    layer = given if isinstance(given, nn.Module) else given()
    for name, module in layer.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise PlanError(
                f"layer {number} contains BatchNorm ({name or 'itself'}), whose statistics"
                " depend on the plan: use GroupNorm or LayerNorm"
            )
    return layer


def _named_parameters(layers: Dict[int, nn.Module]) -> Dict[nn.Parameter, str]:
    """Return each parameter with its first name, in the order of the layers."""
    found: Dict[nn.Parameter, str] = {}
    for number, layer in layers.items():
        for name, parameter in layer.named_parameters():
            found.setdefault(parameter, f"{number}.{name}")
    return found
