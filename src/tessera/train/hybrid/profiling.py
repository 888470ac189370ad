"""Profile of a model on one device: times and sizes of its layers, without other processes.

Each class of equal layers runs alone, for several numbers of samples and tensor widths; a part of
a divided layer runs without its exchanges, which are counted (single-device distributed profile of
Crius, arXiv 2403.16125). Needs PyTorch.
"""

from __future__ import annotations

import contextlib
import copy
import json
import statistics
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from tessera.train import randomness
from tessera.train.hybrid.plans import PlanError
from tessera.train.hybrid.probing import link_points
from tessera.train.hybrid.splitting import LoneGroup, Split, split_layer
from tessera.train.reports import LONGEST_LINE, report_event

VERSION = 1
MOST_SECONDS = 60.0
"""After this time, only the undivided layers are measured further."""
WIDTHS = (1, 2, 4, 8)
WARM_UP, REPEATS = 2, 5
SLOW_SECONDS = 1.0
"""Passes that take longer are repeated less often."""


class Program(NamedTuple):
    """The arguments of `Hybrid` that a profile needs.

    Attributes:
        layers: modules, or functions that create them.
        samples: samples of a micro-batch.
        dtype: data type of the passes (autocast); None for that of the parameters.
    """

    layers: Sequence[Any]
    loss: Callable[[Any, Any], torch.Tensor]
    optimizer: Callable[[List[nn.Parameter]], torch.optim.Optimizer]
    feed: Callable[[int, range], Tuple[Any, Any]]
    split: Split
    samples: int
    dtype: Optional[torch.dtype]
    recompute: bool
    seed: int


class _Class(NamedTuple):
    """One class of equal layers.

    Attributes:
        layer: the first of them, undivided, on the CPU.
        inputs: its inputs for all samples of a micro-batch.
        targets: for the last layer, whose passes include the loss.
    """

    name: str
    layer: nn.Module
    inputs: Any
    targets: Any


def report_profile(
    program: Program, *, device: torch.device, max_tensor: Optional[int]
) -> Dict[str, Any]:
    """Measure the model, report the result to the portal, and return it.

    Args:
        program: the training.
        device: device of this process.
        max_tensor: maximum tensor width; None for any.

    Raises:
        PlanError: the model has so many classes of layers that the profile is too long.
    """
    began = time.monotonic()
    names, classes = _classes(program, device)
    widths = [width for width in WIDTHS if width <= (max_tensor or WIDTHS[-1])]
    runs: Dict[str, List[Dict[str, Any]]] = {one.name: [] for one in classes}
    bench = _Bench(program, device)
    for width in widths:
        for samples in _sample_sizes(program.samples):
            for one in classes:
                if width > 1 and time.monotonic() - began > MOST_SECONDS:
                    break
                run = bench.measure(one, width, samples)
                if run is not None:
                    runs[one.name].append(run)
    for one in classes:
        _use_undivided(runs[one.name], widths, program.split.get(type(one.layer), {}))
    document = {
        "version": VERSION,
        "software": {"torch": str(torch.__version__)},
        "device_memory": _memory_of(device),
        "layers": names,
        "classes": [{"name": name, "runs": found} for name, found in runs.items()],
        "links": [list(point) for point in link_points(device)],
        "state_factor": round(bench.state_factor, 3),
        "recompute": program.recompute,
        "seconds": round(time.monotonic() - began, 3),
    }
    if len(json.dumps(document)) + 100 > LONGEST_LINE:
        raise PlanError(
            f"the profile of {len(runs)} classes of layers is too long: use fewer classes"
        )
    report_event("profile", **document)
    return document


def _classes(program: Program, device: torch.device) -> Tuple[List[str], List[_Class]]:
    """Return the class of each layer, and the first layer of each class with its inputs.

    Layers are created, run and freed one after another; the model need not fit on the device.
    """
    whole = range(program.samples)
    value, targets = program.feed(0, whole)
    names: List[str] = []
    found: Dict[Any, _Class] = {}
    last = len(program.layers) - 1
    for number, given in enumerate(program.layers):
        if not isinstance(given, nn.Module):
            randomness.seed_all(program.seed, number)
        layer = given if isinstance(given, nn.Module) else given()
        key = (
            type(layer),
            number == last,
            tuple((name, tuple(one.shape)) for name, one in layer.named_parameters()),
        )
        if key not in found:
            taken = sum(one.name.split(" ")[0] == type(layer).__name__ for one in found.values())
            name = type(layer).__name__[:60] + (f" {taken + 1}" if taken else "")
            found[key] = _Class(name, layer, value, targets if number == last else None)
        names.append(found[key].name)
        with torch.no_grad(), _autocast(program, device):
            value = copy.deepcopy(layer).to(device)(_moved(value, device))
            value = _moved(value, torch.device("cpu"))
    return names, list(found.values())


def _sample_sizes(samples: int) -> List[int]:
    """Return up to four numbers of samples, the largest first."""
    sizes = {samples, max(1, samples // 2), max(1, samples // 4), 1}
    return sorted(sizes, reverse=True)


class _Bench:
    """Measures layers of a program on one device.

    Attributes:
        state_factor: memory of parameters, gradients and optimizer state, in parameters.
    """

    def __init__(self, program: Program, device: torch.device) -> None:
        self._program, self._device = program, device
        self.state_factor = 0.0

    def measure(self, one: _Class, width: int, samples: int) -> Optional[Dict[str, Any]]:
        """Measure a class at one width; None if it cannot be divided so, or does not fit."""
        group, layer = LoneGroup(), copy.deepcopy(one.layer)
        try:
            if width > 1 and not split_layer(layer, self._program.split, 0, width, group):
                return None
            run = self._run(one, layer.to(self._device), group, samples)
        except (PlanError, RuntimeError) as error:
            # Too little memory, or code that does not work with so narrow a part.
            if width == 1 and not isinstance(error, torch.OutOfMemoryError):
                raise
            return None
        finally:
            del layer
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
        return {"tensor": width, "samples": samples, **run}

    def _run(
        self, one: _Class, layer: nn.Module, group: LoneGroup, samples: int
    ) -> Dict[str, Any]:
        inputs = _moved(_first(one.inputs, samples), self._device)
        targets = _moved(_first(one.targets, samples), self._device)
        if torch.is_tensor(inputs) and inputs.is_floating_point():
            inputs.requires_grad_()
        boundary = 0

        def forward() -> torch.Tensor:
            nonlocal boundary
            with _autocast(self._program, self._device):
                output = layer(inputs)
                boundary = output.numel() * output.element_size()
                return output if targets is None else self._program.loss(output, targets)

        layer.train()
        with FlopCounterMode(display=False) as flops:
            _backward(forward())
        group.exchanges.clear()
        with _saved_bytes(layer) as saved:
            _backward(forward())
        exchanges = dict(group.exchanges)
        forwards, backwards, peak = _passes(forward, self._device)
        stored = sum(saved.values())
        return {
            "forward_s": _rounded(forwards),
            "backward_s": _rounded(backwards),
            "update_s": _rounded(self._update_seconds(layer)),
            "parameter_bytes": sum(p.numel() * p.element_size() for p in layer.parameters()),
            "activation_bytes": stored,
            "temporary_bytes": max(2 * boundary, peak - stored),
            "boundary_bytes": boundary,
            "flops": float(flops.get_total_flops()),
            "exchanges": [
                ["all_reduce_backward" if is_backward else "all_reduce", size, times]
                for (is_backward, size), times in sorted(exchanges.items())
            ],
        }

    def _update_seconds(self, layer: nn.Module) -> float:
        parameters = [parameter for parameter in layer.parameters() if parameter.requires_grad]
        if not parameters:
            return 0.0
        optimizer = self._program.optimizer(parameters)
        seconds = []
        for _ in range(3):
            begun = _now(self._device)
            optimizer.step()
            seconds.append(_now(self._device) - begun)
        own = sum(one.numel() * one.element_size() for one in parameters)
        states = sum(
            value.numel() * value.element_size()
            for state in optimizer.state.values()
            for value in state.values()
            if torch.is_tensor(value)
        )
        self.state_factor = max(self.state_factor, 2.0 + states / own)
        return statistics.median(seconds[1:])


def _backward(output: torch.Tensor) -> None:
    output.backward(torch.ones_like(output))


def _passes(forward: Callable[[], torch.Tensor], device: torch.device) -> Tuple[float, float, int]:
    """Return the median seconds of forward and backward passes, and the peak of their memory."""
    forwards: List[float] = []
    backwards: List[float] = []
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
    for turn in range(WARM_UP + REPEATS):
        begun = _now(device)
        output = forward()
        met = _now(device)
        _backward(output)
        ended = _now(device)
        forwards.append(met - begun)
        backwards.append(ended - met)
        if turn and ended - begun > SLOW_SECONDS:
            break
    skip = min(WARM_UP, len(forwards) - 1)
    peak = torch.cuda.max_memory_allocated(device) - before if device.type == "cuda" else 0
    return statistics.median(forwards[skip:]), statistics.median(backwards[skip:]), peak


def _use_undivided(
    runs: List[Dict[str, Any]], widths: Sequence[int], split: Mapping[str, str]
) -> None:
    """Copy the results of an undivided class to wider tensor groups: they are equal."""
    if split:
        return
    alone = list(runs)
    runs += [{**run, "tensor": width} for width in widths[1:] for run in alone]


@contextlib.contextmanager
def _saved_bytes(layer: nn.Module) -> Any:
    """Count the bytes of the tensors that passes store for their backward pass, by storage."""
    own = {parameter.untyped_storage().data_ptr() for parameter in layer.parameters()}
    found: Dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield found


def _autocast(program: Program, device: torch.device) -> Any:
    if program.dtype is None:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=program.dtype)


def _moved(value: Any, device: torch.device) -> Any:
    return value.detach().to(device) if torch.is_tensor(value) else value


def _first(value: Any, samples: int) -> Any:
    return value[:samples].clone() if torch.is_tensor(value) else value


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _memory_of(device: torch.device) -> int:
    """Return the memory of the device; 0 on a CPU, where the job's limit counts."""
    if device.type != "cuda":
        return 0
    return int(torch.cuda.get_device_properties(device).total_memory)


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.4g}")
