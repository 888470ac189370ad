"""What starting, moving and resizing costs: declared, then learned from what it took."""

from math import log2

_WEIGHT = 0.3


class RestartCosts:
    """Seconds by application and type; what has been seen replaces what was assumed."""

    def __init__(self, default: float = 30.0) -> None:
        """Assume ``default`` seconds.

        Raises:
            ValueError: it is negative.
        """
        if default < 0:
            raise ValueError(f"a restart cannot cost {default} s")
        self.default = default
        self._seen: dict[tuple[str | None, str | None], float] = {}

    def observe(self, application: str | None, device_type: str | None, seconds: float) -> None:
        """Note what a restart took; later ones count more, so that a change is followed."""
        for key in ((application, device_type), (application, None)):
            before = self._seen.get(key, seconds)
            self._seen[key] = before + _WEIGHT * (seconds - before)

    def seconds(self, application: str | None, device_type: str | None = None) -> float:
        """What the next one is expected to take."""
        known = self._seen.get((application, device_type), self._seen.get((application, None)))
        return self.default if known is None else known


def elasticflow_overhead(devices: int, *, restarts: bool) -> float:
    """Seconds that ElasticFlow's published simulator charges for a change to ``devices``."""
    large = devices >= 256
    fixed = (7.0 if large else 2.0) + ((47.0 if large else 27.0) if restarts else 0.0)
    return fixed + 2.0 * (log2(max(1, devices)) + 1.0)
