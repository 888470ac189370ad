"""Profiles of variable batches."""

from typing import Any


def point(batch: int, scale: float = 1.0) -> dict[str, Any]:
    seconds = 5 * scale * (0.1 + 0.001 * batch)
    return {"batch": batch, "accumulation": 1, "steps": 5, "seconds": seconds}


def batch_profile(scale: float = 1.0) -> dict[str, Any]:
    return {
        "version": 1,
        "software": {"torch": "2.13.0"},
        "points": [point(batch, scale) for batch in (64, 16, 32)],
        "noise": [1.0, 400.0],
        "seconds": 2.5,
    }
