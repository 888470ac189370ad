"""Planted laws: without one of its rules, the control law fails the checks of the suite.

Each test first runs a check with the real law, then with a law that lacks one rule.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any, Final

import pytest

from scheduling.core.sharing.plants import Plant, PlantTurn
from tessera.node.sharing import account, bounds, gaps, law
from tests.scheduling.core.sharing import test_plants as checks

expiry: Final = import_module("tests.node.sharing.test_bounds")
Patch = pytest.MonkeyPatch


def disobeying(patch: Patch) -> None:
    """Let the guest work whenever its gate is open, whatever its compute is."""
    ask = gaps.ask

    def always(
        follower: gaps.Follower, now: float, compute: float, module: float, phase: Any
    ) -> Any:
        if compute > 0:
            return follower, gaps.GateAnswer(go=True)
        return ask(follower, now, compute, module, phase)

    patch.setattr(gaps, "ask", always)


def without_account(patch: Patch) -> None:
    missing = property(lambda found: found.baseline is None)
    patch.setattr(account.DelayAccount, "overdrawn", missing)
    patch.setattr(law, "reserve", lambda _baseline, _slowdown: -math.inf)


def without_expiry(patch: Patch) -> None:
    patch.setattr(bounds, "compute_at", lambda bound, _now: bound.compute if bound else 0.0)
    patch.setattr(bounds, "must_freeze", lambda bound, _now: bound is None)


def without_stale_rule(patch: Patch) -> None:
    patch.setattr(law, "_without_stale", lambda state, _limits: state)


def without_guard(patch: Patch) -> None:
    """Count a module as free wherever it starts within a gap."""

    def overlap(_follower: Any, _now: float, module: float, phase: Any) -> float:
        return module if phase is None or phase.busy else 0.0

    patch.setattr(gaps, "_overlap", overlap)


@pytest.mark.parametrize("plant", [checks.BUSY, checks.HALF], ids=["busy", "half"])
def test_a_guest_that_ignores_its_compute_is_limited_by_the_account_alone(
    plant: Plant, monkeypatch: Patch
) -> None:
    disobeying(monkeypatch)

    outcomes = checks.runs(plant)
    without_account(monkeypatch)
    unlimited = checks.runs(plant)

    assert checks.loss(outcomes) <= 0.05
    assert checks.worst(outcomes) <= 0.06
    assert checks.loss(unlimited) > 0.3


VANISHES: Final = replace(checks.HALF, turn=PlantTurn(at=12, gap_seconds=0.0))
LONG: Final = replace(checks.HALF, guest_kernel_seconds=0.02)


@pytest.mark.parametrize(
    ("plant_law", "check"),
    [
        (
            without_stale_rule,
            lambda: checks.test_after_a_turn_the_holder_is_within_its_slowdown_at_once(VANISHES),
        ),
        (
            without_guard,
            lambda: checks.test_the_holder_keeps_its_pace_and_the_guest_gets_the_gaps(LONG, 0.35),
        ),
        (
            without_expiry,
            expiry.test_a_coordinator_that_stops_shuts_its_guests_out_within_four_seconds,
        ),
    ],
    ids=["no stale rule", "no guard", "no expiry"],
)
def test_without_one_of_its_rules_the_law_fails_a_check(
    plant_law: Callable[[Patch], None], check: Callable[[], None], monkeypatch: Patch
) -> None:
    check()

    plant_law(monkeypatch)

    with pytest.raises(AssertionError):
        check()
