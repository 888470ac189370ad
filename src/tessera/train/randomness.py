"""The states of all random number generators that training draws from, taken and put back."""

from __future__ import annotations

import hashlib
import random
import sys
from contextlib import contextmanager
from typing import Any, Dict, Iterator


def seed_all(*parts: int) -> None:
    """Seed Python's, NumPy's and torch's generators from numbers that name a place in a run.

    Each generator gets a number of its own, so that two of them never draw the same series.
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
    """The states of Python's, NumPy's, torch's and the current CUDA device's generators.

    Generators of libraries that have not been imported are left out. The result is for `restore`
    in this process; `portable` makes it fit for a checkpoint.
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
    """Put back what `capture` gave."""
    random.setstate(states["python"])
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and "numpy" in states:
        numpy.random.set_state(states["numpy"])
    if torch is not None and "torch" in states:
        torch.set_rng_state(states["torch"])
        if torch.cuda.is_available() and "cuda" in states:
            torch.cuda.set_rng_state(states["cuda"])


def portable(states: Dict[str, Any]) -> Dict[str, Any]:
    """What `capture` gave, in a form that a checkpoint can hold."""
    version, words, gauss = states["python"]
    packed = b"".join(word.to_bytes(4, "little") for word in words)
    return {**states, "python": (version, packed, gauss)}


def from_portable(states: Dict[str, Any]) -> Dict[str, Any]:
    """The opposite of `portable`."""
    version, packed, gauss = states["python"]
    words = tuple(int.from_bytes(packed[at : at + 4], "little") for at in range(0, len(packed), 4))
    return {**states, "python": (version, words, gauss)}


@contextmanager
def kept() -> Iterator[None]:
    """Leave all generators behind as they were found."""
    states = capture()
    try:
        yield
    finally:
        restore(states)
