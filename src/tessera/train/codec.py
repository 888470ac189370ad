"""Serialization of states: equal states give equal bytes on every machine.

A state is built of mappings, lists, tuples, JSON values, ``bytes``, NumPy arrays and torch
tensors, nested at will. It is written as a line of JSON (the tree), followed by the raw contents
of the arrays, without pickle: reading a file does not execute code in it, and equal states have
equal hashes.
"""

from __future__ import annotations

import json
import sys
from typing import Any, BinaryIO, Callable, Dict, List, Tuple

MAGIC = b"tessera-state-1\n"
MAX_TREE_BYTES = 1 << 30


class StateError(ValueError):
    """A state that cannot be written, or a file without a valid one."""


def write_state(state: Any, file: BinaryIO) -> None:
    """Write a state.

    Raises:
        StateError: a value, named by its path, is neither JSON nor an array.
        OSError: from the file.
    """
    blobs: List[memoryview] = []
    tree = json.dumps(_Writer(blobs).node(state, "state"), separators=(",", ":")).encode("ascii")
    file.write(MAGIC)
    file.write(b"%d\n" % len(tree))
    file.write(tree)
    for blob in blobs:
        file.write(blob)


def read_state(file: BinaryIO) -> Any:
    """Read a state; torch tensors are on the CPU.

    Raises:
        StateError: the file is not a state, is truncated or has an array that is unsupported here.
    """
    if file.read(len(MAGIC)) != MAGIC:
        raise StateError("not a state file of a supported version")
    digits = file.readline(24)
    if not digits.endswith(b"\n") or not digits[:-1].isdigit():
        raise StateError("the length of the tree is missing")
    length = int(digits)
    if length > MAX_TREE_BYTES:
        raise StateError(f"the tree has {length} bytes; the limit is {MAX_TREE_BYTES}")
    try:
        tree = json.loads(_exactly(file, length))
    except ValueError as error:
        raise StateError(f"the tree is not JSON: {error}") from None
    return _Reader(file).node(tree)


def _exactly(file: BinaryIO, length: int) -> bytes:
    found = file.read(length)
    if len(found) != length:
        raise StateError(f"truncated: {len(found)} of {length} bytes")
    return found


# -- writing --------------------------------------------------------------------------------------


class _Writer:
    """Converts a state to a tree; arrays go to ``blobs`` in order of occurrence."""

    def __init__(self, blobs: List[memoryview]) -> None:
        self._blobs = blobs

    def node(self, value: Any, path: str) -> Any:
        if value is None or isinstance(value, (bool, int, float, str)):
            return _plain(value)
        if isinstance(value, (bytes, bytearray)):
            return self._blob("bytes", "u1", [len(value)], memoryview(bytes(value)))
        if isinstance(value, dict):
            items = [
                [self.node(key, f"{path} key"), self.node(inner, f"{path}[{key!r}]")]
                for key, inner in value.items()
            ]
            return {"map": items}
        if isinstance(value, (list, tuple)):
            kind = "tuple" if isinstance(value, tuple) else "list"
            return {kind: [self.node(one, f"{path}[{i}]") for i, one in enumerate(value)]}
        array = _as_array(value)
        if array is None:
            raise StateError(
                f"{path} is a {type(value).__name__}: store only numbers, strings, bytes, "
                f"lists, mappings, NumPy arrays and torch tensors"
            )
        return self._blob(*array)

    def _blob(self, kind: str, dtype: str, shape: List[int], content: memoryview) -> Any:
        self._blobs.append(content)
        return {"array": [kind, dtype, shape, content.nbytes]}


def _plain(value: Any) -> Any:
    """Convert to a JSON value whose type survives a round trip."""
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return None


def _as_array(value: Any) -> Any:
    """Return the kind, dtype, shape and raw bytes of an array; None for other values."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_quantized:
            return None
        flat = value.detach().to("cpu").contiguous().reshape(-1)
        raw = memoryview(flat.view(torch.uint8).numpy()) if flat.numel() else memoryview(b"")
        return "torch", str(value.dtype).split(".")[-1], list(value.shape), raw
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        array = numpy.asarray(value)
        if array.dtype.hasobject or array.dtype.names:
            return None
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        return "numpy", little.dtype.str, list(array.shape), memoryview(little.tobytes())
    return None


# -- reading --------------------------------------------------------------------------------------


class _Reader:
    """Builds a state from its tree; arrays are read from the file in the order of the tree."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def node(self, tree: Any) -> Any:
        if not isinstance(tree, dict):
            return tree
        if len(tree) != 1:
            raise StateError("a node of the tree must have exactly one kind")
        (kind, inner) = next(iter(tree.items()))
        made = _KINDS.get(kind)
        if made is None or not isinstance(inner, list):
            raise StateError(f"unknown kind of node: {kind!r}")
        return made(self, inner)

    def mapping(self, items: List[Any]) -> Dict[Any, Any]:
        try:
            return {self.node(key): self.node(value) for key, value in items}
        except (TypeError, ValueError) as error:
            if isinstance(error, StateError):
                raise
            raise StateError(f"a mapping cannot be restored: {error}") from None

    def array(self, description: List[Any]) -> Any:
        try:
            kind, dtype, shape, size = description
            content = _exactly(self._file, int(size))
            return _ARRAYS[kind](content, str(dtype), tuple(int(length) for length in shape))
        except StateError:
            raise
        except Exception as error:  # libraries raise many types of errors for a bad shape or dtype
            raise StateError(f"an array cannot be restored: {error}") from None


def _numpy_array(content: bytes, dtype: str, shape: Tuple[int, ...]) -> Any:
    import numpy as np  # noqa: PLC0415 - only jobs that saved an array need it

    return np.frombuffer(content, dtype=np.dtype(dtype)).reshape(shape).copy()


def _torch_tensor(content: bytes, dtype: str, shape: Tuple[int, ...]) -> Any:
    import torch  # noqa: PLC0415 - as above

    kind = getattr(torch, dtype)
    if not content:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(bytearray(content), dtype=kind).reshape(shape)


_ARRAYS: Dict[str, Callable[[bytes, str, Tuple[int, ...]], Any]] = {
    "bytes": lambda content, _dtype, _shape: content,
    "numpy": _numpy_array,
    "torch": _torch_tensor,
}
_KINDS: Dict[str, Callable[[_Reader, List[Any]], Any]] = {
    "map": lambda reader, items: reader.mapping(items),
    "list": lambda reader, items: [reader.node(item) for item in items],
    "tuple": lambda reader, items: tuple(reader.node(item) for item in items),
    "array": lambda reader, items: reader.array(items),
}
