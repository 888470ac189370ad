"""Gates of a guest before the modules of a PyTorch model, and its bound of device memory.

A gate costs one read of mapped memory. Gates are at leaf modules; where these take less than
0.2 ms in the mean, gates move up to their parents. A compiled region is one module.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Deque, Dict, List, Optional, Set

import torch

from tessera.train.guest_gate import Gate
from tessera.train.spilling import Spill

LEAST_MODULE_SECONDS = 0.0002
_STEPS_BEFORE_A_MOVE = 3
_IN_FLIGHT = 2
"""Modules of a guest that are queued on the device at one time."""


class Attachment:
    """Gates and memory bound of a model; without a gate it does nothing.

    Args:
        gate: the gate of this process; None if the job is not a guest.
        model: the model.
        optimizer: its optimizer, or None.

    Attributes:
        gated: modules with a gate.
        spill: activations in host memory.
    """

    def __init__(self, gate: Optional[Gate], model: torch.nn.Module, optimizer: Any) -> None:
        self.gated: List[torch.nn.Module] = []
        self.spill: Optional[Spill] = None
        self._gate, self._model, self._optimizer = gate, model, optimizer
        self._handles: List[Any] = []
        self._module_handles: List[Any] = []
        self._steps = self._passed = 0
        self._began = time.perf_counter()
        self._waited = 0.0
        self._flying: Deque[Any] = deque()
        if gate is None:
            return
        self._device = next((one.device for one in model.parameters()), torch.device("cpu"))
        self.spill = Spill(model)
        gate.listens, gate.memory = "module", self._memory
        self._set_gates(_leaves(model))
        self._handles = [
            model.register_forward_pre_hook(self._begin_forward),
            model.register_forward_hook(self._end_forward, always_call=True),
        ]

    def close(self) -> None:
        """Remove all gates."""
        for handle in (*self._handles, *self._module_handles):
            handle.remove()
        self._handles, self._module_handles, self.gated = [], [], []
        if self._gate is not None:
            self._gate.listens, self._gate.memory = "step", dict

    # -- gates -----------------------------------------------------------------------------------

    def _set_gates(self, modules: List[torch.nn.Module]) -> None:
        for handle in self._module_handles:
            handle.remove()
        self.gated = modules
        self._module_handles = []
        for module in modules:
            self._module_handles.append(module.register_forward_pre_hook(self._before_forward))
            self._module_handles.append(module.register_forward_hook(self._before_backward))

    def _pass(self) -> None:
        gate = self._gate
        if gate is None:
            return
        if self._device.type == "cuda":
            self._wait_for_flying()
        self._passed += 1
        self._waited += gate.wait()

    def _wait_for_flying(self) -> None:
        """Limit queued modules, so that the guest's kernels stop soon after the gate closes."""
        event = torch.cuda.Event()
        event.record()
        self._flying.append(event)
        if len(self._flying) > _IN_FLIGHT:
            self._flying.popleft().synchronize()

    def _before_forward(self, _module: Any, _inputs: Any) -> None:
        self._pass()

    def _before_backward(self, _module: Any, _inputs: Any, output: Any) -> None:
        """Gate the backward pass of a module at the gradient of its first output."""
        first = output[0] if isinstance(output, (tuple, list)) and output else output
        if isinstance(first, torch.Tensor) and first.requires_grad:
            first.register_hook(self._at_gradient)

    def _at_gradient(self, _gradient: Any) -> None:
        self._pass()

    # -- mini-batches ----------------------------------------------------------------------------

    def _begin_forward(self, _module: Any, _inputs: Any) -> None:
        if self._gate is None or self.spill is None:
            return
        if self._model.training and torch.is_grad_enabled():
            self._gate.end_step()
            self._move_gates()
            self.spill.begin(self._budget())

    def _end_forward(self, _module: Any, _inputs: Any, _output: Any) -> None:
        if self.spill is not None:
            self.spill.end()

    def _move_gates(self) -> None:
        """Move the gates up if modules are so short that gates would cost too much."""
        self._steps += 1
        if self._steps % _STEPS_BEFORE_A_MOVE or not self._passed:
            return
        now = time.perf_counter()
        mean = (now - self._began - self._waited) / self._passed
        if mean < LEAST_MODULE_SECONDS and len(self.gated) > 1:
            self._set_gates(_parents(self._model, self.gated))
        self._began, self._waited, self._passed = now, 0.0, 0

    # -- memory ----------------------------------------------------------------------------------

    def _budget(self) -> Optional[int]:
        """Return the bytes of saved activations that may stay on the device; None if all may stay.

        The bound counts from the next mini-batch on, so that a step is never repeated.
        """
        bound = None if self._gate is None else self._gate.bound
        if bound is None:
            return None
        if self._device.type == "cuda":
            _bound_allocator(self._device, bound.memory)
        return max(bound.memory - self._resident(), 0)

    def _resident(self) -> int:
        """Return the bytes that stay: parameters, their gradients, buffers, optimizer state."""
        parameters = list(self._model.parameters())
        total = sum(2 * _bytes(one) if one.requires_grad else _bytes(one) for one in parameters)
        total += sum(_bytes(one) for one in self._model.buffers())
        states = self._optimizer.state.values() if self._optimizer is not None else ()
        for state in states:
            total += sum(_bytes(one) for one in state.values() if isinstance(one, torch.Tensor))
        return total

    def _memory(self) -> Dict[str, int]:
        spilled = 0 if self.spill is None else self.spill.spilled
        if self._device.type != "cuda":
            kept = 0 if self.spill is None else self.spill.kept
            return {"reserved": self._resident() + kept, "spilled": spilled}
        free, size = torch.cuda.mem_get_info(self._device)
        return {
            "reserved": torch.cuda.memory_reserved(self._device),
            "peak": torch.cuda.max_memory_reserved(self._device),
            "spilled": spilled,
            "device": size,
            "free": free,
        }


def _bound_allocator(device: Any, memory: int) -> None:
    """Bound PyTorch's allocator on the device, and release its cache above the bound."""
    _, size = torch.cuda.mem_get_info(device)
    torch.cuda.set_per_process_memory_fraction(min(memory / size, 1.0), device)
    if torch.cuda.memory_reserved(device) > memory:
        torch.cuda.empty_cache()


def _bytes(tensor: torch.Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())


def _leaves(model: torch.nn.Module) -> List[torch.nn.Module]:
    return [one for one in model.modules() if not any(True for _ in one.children())]


def _parents(model: torch.nn.Module, gated: List[torch.nn.Module]) -> List[torch.nn.Module]:
    """Return the modules one level above; children of the model stay where they are."""
    known: Set[int] = {id(one) for one in gated}
    above: List[torch.nn.Module] = []

    def visit(module: torch.nn.Module) -> None:
        children = list(module.children())
        if module is not model and any(id(child) in known for child in children):
            above.append(module)
            return
        if id(module) in known:
            above.append(module)
            return
        for child in children:
            visit(child)

    visit(model)
    return above if above != gated else [model]
