"""Separate channel layers for tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from channels.layers import channel_layers

Layer = TypeVar("Layer", bound=Any)


@contextmanager
def layer_of(layer: Layer) -> Iterator[Layer]:
    """Use this layer for all code inside the block."""
    before = channel_layers.set("default", layer)
    try:
        yield layer
    finally:
        channel_layers.set("default", before)
