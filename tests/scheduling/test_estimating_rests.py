"""Estimates are made one at a time, with a rest between them."""

from typing import Any

import pytest

from scheduling import tasks
from scheduling.services import estimates
from scheduling.signals import estimates_rest


def test_others_are_kept_off_while_estimates_are_made_and_as_long_as_they_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[Any] = []

    def hear(*, seconds: float, **_: Any) -> None:
        heard.append(seconds)

    estimates_rest.connect(hear)
    clock = iter([100.0, 107.0])
    monkeypatch.setattr(tasks, "monotonic", lambda: next(clock))
    monkeypatch.setattr(estimates, "estimate_starts", lambda **_: heard.append("made"))

    try:
        tasks.estimate_starts()
    finally:
        estimates_rest.disconnect(hear)

    assert heard == [tasks.MOST_ESTIMATING, "made", 28.0]
