"""Measured times and sizes of the layers of a job on one device of one type.

A profile job runs each layer class alone on one device, without collectives, for several tensor
widths and numbers of samples: the single-device distributed profile of Crius (EuroSys '26).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

from scheduling.core.grids.curves import interpolated
from scheduling.core.grids.model import GridInputError, StageShape


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRun:
    """A layer, or several in sequence, at one tensor width and number of samples.

    Attributes:
        forward_s: seconds of the forward pass, without collectives.
        backward_s: seconds of the backward pass, without collectives.
        update_s: seconds of the optimizer's update.
        parameter_bytes: parameters on this device.
        activation_bytes: activations stored for the backward pass.
        temporary_bytes: largest temporary memory of a pass.
        boundary_bytes: output of the layer, which the next stage gets.
        flops: floating-point operations of the forward and backward pass.
        exchanges: collectives within the tensor group: primitive, bytes, times per pass. The
            suffix ``_backward`` of a primitive assigns it to the backward pass.
    """

    forward_s: float
    backward_s: float
    update_s: float = 0.0
    parameter_bytes: float = 0.0
    activation_bytes: float = 0.0
    temporary_bytes: float = 0.0
    boundary_bytes: float = 0.0
    flops: float = 0.0
    exchanges: tuple[tuple[str, float, int], ...] = ()


_NUMBERS = [field.name for field in fields(LayerRun) if field.name != "exchanges"]


class UnprofiledError(GridInputError):
    """The profile has no run with the tensor width of a plan."""


@dataclass(frozen=True, kw_only=True)
class LayerClass:
    """Runs of one class of equal layers.

    Attributes:
        name: name of the class.
        runs: measured run by tensor width and samples.
    """

    name: str
    runs: Mapping[tuple[int, int], LayerRun]

    @cached_property
    def _samples(self) -> Mapping[int, Sequence[int]]:
        widths = {tensor for tensor, _ in self.runs}
        return {w: sorted(n for tensor, n in self.runs if tensor == w) for w in widths}

    def at(self, tensor: int, samples: float) -> LayerRun:
        """Return the run at a number of samples, interpolated linearly between measured ones.

        Tensor widths are not interpolated. Below the fewest measured samples, the run with the
        fewest is the result, since times do not fall in proportion.

        Raises:
            UnprofiledError: the tensor width was not measured.
        """
        sizes = self._samples.get(tensor)
        if not sizes:
            raise UnprofiledError(
                f"{self.name} was not measured at tensor width {tensor}.",
                field="tensor",
                value=tensor,
                remedy="Profile this width, or limit `parallel.tensor.max`.",
            )
        runs = [self.runs[tensor, n] for n in sizes]
        if samples in sizes:
            return runs[sizes.index(int(samples))]
        numbers = {
            name: interpolated(samples, sizes, [getattr(run, name) for run in runs])
            for name in _NUMBERS
        }
        exchanges = tuple(
            (primitive, interpolated(samples, sizes, [r.exchanges[i][1] for r in runs]), times)
            for i, (primitive, _, times) in enumerate(runs[0].exchanges)
        )
        return LayerRun(**numbers, exchanges=exchanges)


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The layers of a job on one device type.

    Attributes:
        type: device type.
        device_memory: bytes of memory of one device.
        layers: names of the classes of all layers, in order.
        classes: layer class by name.
    """

    type: str
    device_memory: int
    layers: tuple[str, ...]
    classes: Mapping[str, LayerClass]

    def __post_init__(self) -> None:
        """Reject a layer without a class."""
        for name in sorted(set(self.layers) - set(self.classes)):
            raise GridInputError(
                f"{name} has no measured class.",
                field="layers",
                value=name,
                remedy="Add the class to `classes`.",
            )

    def runs(self, first: int, last: int, shape: StageShape, samples: float) -> list[LayerRun]:
        """Return the runs of the layers of a stage for the part of one replica.

        Args:
            first: index of the first layer.
            last: index after the last layer.
            shape: shape of the stage.
            samples: samples of one micro-batch, over all replicas.

        Raises:
            UnprofiledError: the profile does not contain the tensor width.
        """
        part = samples / shape.data
        found = {
            name: self.classes[name].at(shape.tensor, part)
            for name in set(self.layers[first:last])
        }
        return [found[name] for name in self.layers[first:last]]


def in_sequence(runs: Sequence[LayerRun]) -> LayerRun:
    """Return several layers as one: sums of times and sizes, and the output of the last one."""
    repeats = Counter(map(id, runs))  # equal layers are one object, so that each is added once
    layers = [(run, repeats[id(run)]) for run in {id(run): run for run in runs}.values()]
    exchanges: Counter[tuple[str, float]] = Counter()
    for layer, repeat in layers:
        for primitive, size, times in layer.exchanges:
            exchanges[primitive, size] += repeat * times
    summed = {name: sum(getattr(run, name) * n for run, n in layers) for name in _NUMBERS}
    summed["temporary_bytes"] = max(layer.temporary_bytes for layer, _ in layers)
    summed["boundary_bytes"] = runs[-1].boundary_bytes
    merged = tuple((name, size, times) for (name, size), times in exchanges.items())
    return LayerRun(**summed, exchanges=merged)
