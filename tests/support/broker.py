"""The broker's keys as the wiring sees them."""

from typing import Any, Self

import pytest

from portal import wiring


class Broker:
    """Keys with the milliseconds that they live, in a world where no time passes by itself."""

    def __init__(self) -> None:
        self.keys: dict[str, tuple[bytes, int]] = {}

    def installed(self, patch: pytest.MonkeyPatch) -> Self:
        """Itself, in the place of the broker."""
        patch.setattr(wiring, "has_broker", lambda: True)
        patch.setattr(wiring, "redis_client", lambda: self)
        return self

    def set(
        self, key: str, value: Any, *, nx: bool = False, ex: int = 0, px: int = 0
    ) -> bool | None:
        if nx and key in self.keys:
            return None
        self.keys[key] = (value if isinstance(value, bytes) else value.encode(), px or 1000 * ex)
        return True

    def get(self, key: str) -> bytes | None:
        return self.keys[key][0] if key in self.keys else None

    def incr(self, key: str) -> int:
        number = int(self.get(key) or 0) + 1
        self.set(key, str(number))
        return number

    def pttl(self, key: str) -> int:
        return self.keys[key][1] if key in self.keys else -2

    def delete(self, key: str) -> int:
        return int(self.keys.pop(key, None) is not None)

    def exists(self, key: str) -> int:
        return int(key in self.keys)
