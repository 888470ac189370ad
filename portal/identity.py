"""Cache keys that compare objects by identity."""

from typing import Generic, TypeVar

T = TypeVar("T")


class Same(Generic[T]):
    """A key that compares its value by identity, for objects that are reused while unchanged.

    Hashing a node with all its cells and devices takes longer than a cache look-up.
    """

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value
