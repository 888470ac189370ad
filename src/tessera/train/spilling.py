"""Saved activations of a guest in host memory, above its bound of device memory.

The tensors that a forward pass saves for its backward pass are kept on the device up to a budget;
what is above it is copied to the host and back without changes. A pool of host memory is reused.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, List, Optional, Set, Tuple, cast

import torch

LEAST_BYTES = 16 << 10
"""Smaller tensors stay: a copy costs more than they take."""


class _Saved:
    """A saved tensor; its memory is freed when autograd drops the object.

    Args:
        tensor: the tensor, on the device or in host memory.
        device: device of the tensor that was saved.
        free: called at the end.
    """

    __slots__ = ("_free", "device", "tensor")

    def __init__(
        self, tensor: torch.Tensor, device: torch.device, free: Callable[[], None]
    ) -> None:
        self.tensor, self.device, self._free = tensor, device, free

    def __del__(self) -> None:
        self._free()


class Spill:
    """Hooks on the saved tensors of a model's forward pass.

    Args:
        model: its parameters are never copied, as they stay on the device anyway.

    Attributes:
        kept: bytes of saved tensors on the device now.
        highest: highest value of ``kept`` since the mini-batch began.
        spilled: bytes of the latest mini-batch that were copied to the host.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.kept = self.highest = self.spilled = 0
        self._model = model
        self._budget: Optional[int] = None
        self._parameters: Set[int] = set()
        self._pool: Dict[Tuple[Any, ...], List[torch.Tensor]] = {}
        self._context: Any = None

    def begin(self, budget: Optional[int]) -> None:
        """Begin a mini-batch with a budget in bytes; None: no spilling and no hooks."""
        self.end()
        self._budget = budget
        self.highest, self.spilled = self.kept, 0
        if budget is None:
            return
        self._parameters = {one.data_ptr() for one in self._model.parameters()}
        self._context = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
        self._context.__enter__()

    def end(self) -> None:
        """End the forward pass."""
        context, self._context = self._context, None
        if context is not None:
            context.__exit__(None, None, None)

    def _pack(self, tensor: torch.Tensor) -> Any:
        size = tensor.numel() * tensor.element_size()
        if size < LEAST_BYTES or tensor.data_ptr() in self._parameters:
            return tensor.detach()
        if self._budget is None or self.kept + size <= self._budget:
            self.kept += size
            self.highest = max(self.highest, self.kept)
            return _Saved(tensor.detach(), tensor.device, partial(self._free, size))
        self.spilled += size
        host, pool = self._host_like(tensor)
        host.copy_(tensor)
        return _Saved(host, tensor.device, partial(pool.append, host))

    def _free(self, size: int) -> None:
        self.kept -= size

    def _unpack(self, saved: Any) -> torch.Tensor:
        if not isinstance(saved, _Saved):
            return cast("torch.Tensor", saved)
        if saved.tensor.device == saved.device:
            return saved.tensor
        back = torch.empty_like(saved.tensor, device=saved.device)
        return back.copy_(saved.tensor)

    def _host_like(self, tensor: torch.Tensor) -> Tuple[torch.Tensor, List[torch.Tensor]]:
        """Return host memory of the layout of a tensor, and the pool that gets it back."""
        key = (tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()))
        pool = self._pool.setdefault(key, [])
        if pool:
            return pool.pop(), pool
        return torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda), pool
