"""The value of a larger batch: the shared formula of jobs and the scheduler.

Works on plain numbers and on arrays, and needs only Python.
"""

from typing import Any


def gain(sqr: Any, var: Any, inverse_scale: Any) -> Any:
    """Return the steps of the initial batch size that one step at a larger batch is worth.

    With the squared norm of the true gradient ``sqr`` and the trace of its covariance ``var``,
    both at the initial batch size M0, one step at batch M gives ``(var + sqr) / (var M0/M +
    sqr)`` times the progress (Pollux, OSDI '21, section 3.1; AdaScale's gain ratio).

    Args:
        sqr: estimate of the squared norm of the gradient, at least 0.
        var: estimate of the gradient's variance, at least 0; not both 0.
        inverse_scale: M0 / M, in (0, 1].

    Returns:
        The gain, from 1 to M / M0.
    """
    return (var + sqr) / (var * inverse_scale + sqr)


def efficiency(sqr: Any, var: Any, inverse_scale: Any) -> Any:
    """Return the useful fraction of each sample at batch M, in (0, 1]: the gain over M / M0."""
    return gain(sqr, var, inverse_scale) * inverse_scale
