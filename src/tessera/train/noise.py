"""The gradient noise scale, and the learning rates that follow from it.

Gradients of small batches are the true gradient and noise. The share of noise in a batch's
gradient determines the gain of a larger batch: statistical efficiency (Pollux, OSDI'21, section
2.2) and AdaScale's learning rate (Johnson et al., ICML'20) are both functions of it. All functions
are pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Dict

SMOOTHING = 0.999
RULES = ("adascale", "sqrt", "linear")


@dataclass
class NoiseScale:
    """Moving estimates of a gradient's squared norm and of its variance.

    Both are of the mean gradient of the initial batch. Attributes are sums with weights, so that
    the first estimates are not biased towards zero.
    """

    square_sum: float = 0.0
    variance_sum: float = 0.0
    weight: float = 0.0

    def update(
        self, *, parts: int, mean_of_squares: float, square_of_mean: float, scale: float
    ) -> None:
        """Add the gradients of one step.

        Args:
            parts: gradients of equal shares of the batch, at least 2 (processes times accumulated
                micro-batches; or two steps one after the other, see `between`).
            mean_of_squares: mean of the squared norms of these gradients.
            square_of_mean: squared norm of their mean.
            scale: the whole batch in multiples of the initial batch.

        Raises:
            ValueError: there are fewer than two parts.
        """
        if parts < 2:
            raise ValueError(f"the noise estimate needs at least 2 gradients, not {parts}")
        square = (parts * square_of_mean - mean_of_squares) / (parts - 1)
        variance = (mean_of_squares - square_of_mean) * scale / (parts - 1)
        if not (math.isfinite(square) and math.isfinite(variance)):
            return  # skip an overflow of half precision
        kept = SMOOTHING**scale
        self.square_sum = kept * self.square_sum + (1 - kept) * square
        self.variance_sum = kept * self.variance_sum + (1 - kept) * variance
        self.weight = kept * self.weight + (1 - kept)

    def between(
        self, *, earlier_square: float, square: float, product: float, scale: float
    ) -> None:
        """Add two successive steps, if a step has one gradient only.

        Args:
            earlier_square: squared norm of the earlier step's gradient.
            square: squared norm of this step's.
            product: inner product of the two.
            scale: the batch of one step in multiples of the initial batch.
        """
        self.update(
            parts=2,
            mean_of_squares=(earlier_square + square) / 2,
            square_of_mean=(earlier_square + square + 2 * product) / 4,
            scale=2 * scale,
        )

    @property
    def square(self) -> float:
        """Squared norm of the true gradient; 0 if unknown."""
        return max(0.0, self.square_sum / self.weight) if self.weight else 0.0

    @property
    def variance(self) -> float:
        """Variance of the initial batch's gradient; 0 if unknown."""
        return max(0.0, self.variance_sum / self.weight) if self.weight else 0.0

    def gain(self, scale: float) -> float:
        """Return the number of initial-batch steps that equal one scaled step: 1 to `scale`."""
        total = self.variance + self.square
        if total <= 0:
            return 1.0
        return total / (self.variance / scale + self.square)

    def efficiency(self, scale: float) -> float:
        """Return the progress per sample relative to the initial batch: 1 / `scale` to 1."""
        return self.gain(scale) / scale

    def to_state(self) -> Dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"square": self.square_sum, "variance": self.variance_sum, "weight": self.weight}

    @classmethod
    def from_state(cls, state: Dict[str, Any]) -> NoiseScale:
        """Restore an object from the result of `to_state`."""
        return cls(float(state["square"]), float(state["variance"]), float(state["weight"]))


def rate_factor(rule: str, noise: NoiseScale, scale: float) -> float:
    """Return the factor for the learning rate of the initial batch.

    Args:
        rule: ``adascale`` (for SGD), ``sqrt`` (for Adam and similar) or ``linear``.
        noise: the current estimates.
        scale: the batch in multiples of the initial batch.

    Raises:
        ValueError: the rule is unknown.
    """
    if rule == "adascale":
        return noise.gain(scale)
    if rule == "sqrt":
        return math.sqrt(scale)
    if rule == "linear":
        return scale
    raise ValueError(f"rule is {rule!r}: one of {', '.join(RULES)}")
