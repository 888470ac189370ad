"""Capture and restore of the states of all random number generators of a training."""

from __future__ import annotations

import hashlib
import random
import sys
from contextlib import contextmanager
from typing import Any, Dict, Iterator


def seed_all(*parts: int) -> None:
    """Seed Python's, NumPy's and torch's generators from numbers, such as a position in a run.

    Each generator gets a different seed, so that two of them never draw the same series.
    """
    digest = hashlib.sha256(",".join(str(part) for part in parts).encode("ascii")).digest()
    random.seed(int.from_bytes(digest[:8], "big"))
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed(int.from_bytes(digest[8:12], "big"))
    if torch is not None:
        torch.default_generator.manual_seed(int.from_bytes(digest[12:19], "big"))
        if torch.cuda.is_available():
            torch.cuda.manual_seed(int.from_bytes(digest[19:26], "big"))


def capture() -> Dict[str, Any]:
    """Return the states of Python's, NumPy's, torch's and the current CUDA device's generators.

    Generators of libraries that are not imported are omitted. The result is for `restore`
    in this process; `portable` converts it for a checkpoint.
    """
    states: Dict[str, Any] = {"python": random.getstate()}
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        states["numpy"] = numpy.random.get_state()
    if torch is not None:
        states["torch"] = torch.get_rng_state()
        if torch.cuda.is_available():
            states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore(states: Dict[str, Any]) -> None:
    """Restore the result of `capture`."""
    random.setstate(states["python"])
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and "numpy" in states:
        numpy.random.set_state(states["numpy"])
    if torch is not None and "torch" in states:
        torch.set_rng_state(states["torch"])
        if torch.cuda.is_available() and "cuda" in states:
            torch.cuda.set_rng_state(states["cuda"])


def portable(states: Dict[str, Any]) -> Dict[str, Any]:
    """Convert the result of `capture` for a checkpoint."""
    version, words, gauss = states["python"]
    packed = b"".join(word.to_bytes(4, "little") for word in words)
    return {**states, "python": (version, packed, gauss)}


def from_portable(states: Dict[str, Any]) -> Dict[str, Any]:
    """Restore the state from the result of `portable`."""
    version, packed, gauss = states["python"]
    words = tuple(int.from_bytes(packed[at : at + 4], "little") for at in range(0, len(packed), 4))
    return {**states, "python": (version, words, gauss)}


@contextmanager
def kept() -> Iterator[None]:
    """Restore all generators at the end of the context."""
    states = capture()
    try:
        yield
    finally:
        restore(states)
