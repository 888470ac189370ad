"""The control law in closed loop with plants: the holder's loss, the guest's share, reactions.

The last tests run checks again with a law that lacks one of its rules: they must fail.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from statistics import mean
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.sharing.device import Serving, SimulatedDevice
from scheduling.core.sharing.plants import Plant, PlantOutcome, PlantTurn, run_plant
from tessera.node.sharing import account, gaps, law
from tessera.node.sharing.law import LawRule

BUSY = Plant(
    kernels=10,
    kernel_seconds=0.002,
    gap_seconds=0.0,
    guest_kernel_seconds=0.002,
    slowdown=0.05,
    seconds=30.0,
    noise=0.03,
)
HALF = replace(BUSY, gap_seconds=0.02)
SEEDS = (101, 102, 103)


def runs(plant: Plant) -> list[PlantOutcome]:
    return [run_plant(plant, seed) for seed in SEEDS]


def loss(outcomes: list[PlantOutcome]) -> float:
    return mean(outcome.loss for outcome in outcomes)


def worst(outcomes: list[PlantOutcome]) -> float:
    return mean(outcome.worst_loss for outcome in outcomes)


def delay_after(outcome: PlantOutcome, turn: float) -> float:
    """Seconds of delay within the 2 s after a turn."""
    steps = [step for step in outcome.steps if step.end > turn and step.start < turn + 2]
    return sum(step.end - step.start - step.alone for step in steps)


def share(outcomes: list[PlantOutcome]) -> float:
    return mean(outcome.guest_share for outcome in outcomes)


@pytest.mark.parametrize(
    ("plant", "least_share"),
    [
        (BUSY, 0.03),
        (HALF, 0.4),
        (replace(BUSY, gap_seconds=0.18), 0.65),
        (replace(HALF, serving=Serving.FIRST_COME), 0.4),
        (replace(HALF, guest_kernel_seconds=0.02), 0.35),
        (replace(HALF, slowdown=0.02), 0.38),
        (replace(BUSY, slowdown=0.1), 0.06),
        (replace(HALF, kernel_seconds=0.05, gap_seconds=0.5), 0.15),
        (replace(HALF, noise=0.1), 0.35),
    ],
    ids=[
        "busy",
        "half",
        "tenth",
        "first-come",
        "long-kernels",
        "narrow",
        "wide",
        "long-steps",
        "noise",
    ],
)
def test_the_holder_keeps_its_pace_and_the_guest_gets_the_gaps(plant, least_share) -> None:
    outcomes = runs(plant)

    assert loss(outcomes) <= plant.slowdown
    assert worst(outcomes) <= 1.2 * plant.slowdown
    assert share(outcomes) >= least_share


@pytest.mark.parametrize(
    "plant",
    [
        replace(HALF, turn=PlantTurn(at=12, gap_seconds=0.0)),
        replace(BUSY, turn=PlantTurn(at=12, kernel_seconds=0.004)),
        replace(HALF, turn=PlantTurn(at=12, kernel_seconds=0.006)),
        replace(HALF, turn=PlantTurn(at=12, back=20, gap_seconds=0.0)),
    ],
    ids=["gap-vanishes", "doubles", "trebles", "back"],
)
def test_after_a_turn_the_holder_is_within_its_slowdown_at_once(plant) -> None:
    outcomes = runs(plant)

    assert max(outcome.back_in_bounds for outcome in outcomes) <= 0.5
    assert max(delay_after(outcome, 12.0) for outcome in outcomes) <= 0.15
    assert loss(outcomes) <= 0.05
    assert worst(outcomes) <= 0.06


@pytest.mark.parametrize("contention", [3.0, 8.0])
@pytest.mark.parametrize("plant", [BUSY, HALF], ids=["busy", "half"])
def test_the_account_limits_the_loss_where_guests_cost_more_than_they_work(
    plant, contention
) -> None:
    outcomes = runs(replace(plant, contention=contention))

    assert loss(outcomes) <= 0.05
    assert worst(outcomes) <= 0.06


def test_a_holder_whose_wait_has_ended_is_measured_again() -> None:
    for outcome in runs(replace(HALF, turn=PlantTurn(at=12, gap_seconds=0.0))):
        assert LawRule.FASTER in outcome.moves


def test_late_steps_cost_the_guest_and_not_the_holder() -> None:
    outcomes = runs(replace(HALF, turn=PlantTurn(tail=0.05)))

    assert loss(outcomes) <= 0.05
    assert share(outcomes) >= 0.2


def test_without_the_phase_a_guest_gets_only_its_compute() -> None:
    outcomes = runs(replace(HALF, follows_gaps=False))

    assert loss(outcomes) <= 0.05
    assert 0.02 <= share(outcomes) <= 0.2


def test_a_holder_alone_loses_nothing_and_draws_the_same() -> None:
    alone, shared = run_plant(HALF, 7, guest=False), run_plant(HALF, 7)

    assert alone.loss == pytest.approx(0, abs=1e-12)
    assert alone.guest_share == 0
    both = zip(alone.steps, shared.steps, strict=False)
    assert all(one.alone == pytest.approx(two.alone) for one, two in both)


def test_a_run_depends_on_its_seed_alone() -> None:
    short = replace(HALF, seconds=8.0)

    assert run_plant(short, 3) == run_plant(short, 3)
    assert run_plant(short, 3) != run_plant(short, 4)


@settings(max_examples=10, deadline=None)
@given(
    plant=st.builds(
        Plant,
        kernels=st.integers(1, 12),
        kernel_seconds=st.sampled_from([0.001, 0.002, 0.01]),
        gap_seconds=st.sampled_from([0.0, 0.005, 0.05]),
        guest_kernel_seconds=st.sampled_from([0.001, 0.004, 0.03]),
        slowdown=st.sampled_from([0.02, 0.05, 0.1]),
        seconds=st.just(25.0),
        serving=st.sampled_from(Serving),
        noise=st.just(0.03),
    ),
    seed=st.integers(0, 99),
)
def test_no_shape_of_holder_and_guest_breaks_the_bound(plant, seed) -> None:
    outcome = run_plant(plant, seed)

    overshoot = 2 * (plant.guest_kernel_seconds + 0.12) / 20
    assert outcome.loss <= plant.slowdown + overshoot
    assert 0 <= outcome.guest_share < 1


@pytest.mark.parametrize(("kernels", "slowdown"), [(1, 0.02), (2, 0.02), (8, 0.02), (1, 0.1)])
def test_kernels_much_longer_than_the_holders_steps_keep_the_bound(
    kernels: int, slowdown: float
) -> None:
    plant = replace(
        BUSY,
        kernels=kernels,
        kernel_seconds=0.001,
        guest_kernel_seconds=0.03,
        slowdown=slowdown,
        serving=Serving.FIRST_COME,
    )
    outcomes = runs(plant)

    assert loss(outcomes) <= slowdown
    assert worst(outcomes) <= 1.2 * slowdown
    assert share(outcomes) >= 0.6 * slowdown


@pytest.mark.soak
@pytest.mark.parametrize("slowdown", [0.02, 0.05, 0.1])
@pytest.mark.parametrize("guest_ms", [4, 10, 30])
@pytest.mark.parametrize("step_ms", [1, 2, 4, 8, 16, 40])
def test_the_loss_of_20_seeds_is_within_the_limit(
    step_ms: int, guest_ms: int, slowdown: float
) -> None:
    kernels = min(step_ms, 4)
    plant = replace(
        BUSY,
        kernels=kernels,
        kernel_seconds=step_ms / 1000 / kernels,
        guest_kernel_seconds=guest_ms / 1000,
        slowdown=slowdown,
        seconds=60.0,
        serving=Serving.FIRST_COME,
    )
    outcomes = [run_plant(plant, seed) for seed in range(1, 21)]

    print(f"{step_ms} {guest_ms} {slowdown}: {loss(outcomes):.4f} {share(outcomes):.4f}")
    assert loss(outcomes) <= slowdown
    assert worst(outcomes) <= 1.2 * slowdown


STALLING = Plant(
    kernels=4,
    kernel_seconds=0.004,
    gap_seconds=0.0,
    guest_kernel_seconds=0.03,
    slowdown=0.05,
    seconds=60.0,
    serving=Serving.FIRST_COME,
    noise=0.03,
)


@pytest.mark.parametrize(
    ("part", "seconds", "least_share"),
    [(0.05, 0.3, 0.06), (0.01, 0.8, 0.06), (0.016 / 20, 1.0, 0.01), (0.016 / 60, 2.0, 0.015)],
    ids=["stalls", "rare-stalls", "checkpoint-in-20-s", "checkpoint-in-60-s"],
)
def test_long_steps_of_the_holder_itself_do_not_exclude_its_guest(
    part: float, seconds: float, least_share: float
) -> None:
    outcomes = runs(replace(STALLING, stall_part=part, stall_seconds=seconds))

    assert loss(outcomes) <= 0.05
    assert share(outcomes) >= least_share


@pytest.mark.parametrize("serving", Serving)
def test_a_device_serves_both_and_loses_no_work(serving) -> None:
    device = SimulatedDevice(serving)
    device.submit_holder(2.0)
    device.submit_guest(1.0)
    passed = 0.0
    while device.holder is not None or device.guest is not None:
        end = device.next_end()
        device.advance(end)
        passed += end
        device.take_holder()
        device.take_guest()

    assert passed == pytest.approx(3.0)
    assert device.guest_work == pytest.approx(1.0)


def test_equal_parts_and_first_come_serve_in_different_order() -> None:
    ends = {}
    for serving in Serving:
        device = SimulatedDevice(serving)
        device.submit_guest(1.0)
        device.submit_holder(1.5)
        device.advance(device.next_end())
        ends[serving] = (device.take_guest(), device.holder)

    assert ends == {Serving.EQUAL_PARTS: (True, 0.5), Serving.FIRST_COME: (True, 1.5)}


@pytest.mark.parametrize(
    "change",
    [
        {"kernels": 0},
        {"kernel_seconds": 0.0},
        {"slowdown": 1.0},
        {"noise": -0.1},
        {"stall_part": 2},
    ],
)
def test_plants_that_cannot_run_are_refused(change) -> None:
    with pytest.raises(ValueError, match="must be"):
        replace(BUSY, **change)


@pytest.mark.parametrize("change", [{"kernel_seconds": 0.0}, {"gap_seconds": -0.1}])
def test_turns_that_cannot_run_are_refused(change) -> None:
    with pytest.raises(ValueError, match="a turn needs"):
        replace(BUSY, turn=replace(BUSY.turn, **change))


def disobeying(patch: pytest.MonkeyPatch) -> None:
    """Let the guest work whenever its gate is open, whatever its compute is."""
    ask = gaps.ask

    def always(
        follower: gaps.Follower, now: float, compute: float, module: float, phase: Any
    ) -> Any:
        if compute > 0:
            return follower, gaps.GateAnswer(go=True)
        return ask(follower, now, compute, module, phase)

    patch.setattr(gaps, "ask", always)


def without_account(patch: pytest.MonkeyPatch) -> None:
    missing = property(lambda found: found.baseline is None)
    patch.setattr(account.DelayAccount, "overdrawn", missing)
    patch.setattr(law, "reserve", lambda _baseline, _slowdown: -math.inf)


def without_stale_rule(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(law, "_without_stale", lambda state, _limits: state)


def without_guard(patch: pytest.MonkeyPatch) -> None:
    """Count a module as free wherever it starts within a gap."""

    def overlap(_follower: Any, _now: float, module: float, phase: Any) -> float:
        return module if phase is None or phase.busy else 0.0

    patch.setattr(gaps, "_overlap", overlap)


@pytest.mark.parametrize("plant", [BUSY, HALF], ids=["busy", "half"])
def test_a_guest_that_ignores_its_compute_is_limited_by_the_account_alone(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    disobeying(monkeypatch)

    outcomes = runs(plant)
    without_account(monkeypatch)
    unlimited = runs(plant)

    assert loss(outcomes) <= 0.05
    assert worst(outcomes) <= 0.06
    assert loss(unlimited) > 0.3


VANISHES: Final = replace(HALF, turn=PlantTurn(at=12, gap_seconds=0.0))
LONG: Final = replace(HALF, guest_kernel_seconds=0.02)


@pytest.mark.parametrize(
    ("plant_law", "check"),
    [
        (
            without_stale_rule,
            lambda: test_after_a_turn_the_holder_is_within_its_slowdown_at_once(VANISHES),
        ),
        (
            without_guard,
            lambda: test_the_holder_keeps_its_pace_and_the_guest_gets_the_gaps(LONG, 0.35),
        ),
    ],
    ids=["no stale rule", "no guard"],
)
def test_without_one_of_its_rules_the_law_fails_a_check(
    plant_law: Callable[[pytest.MonkeyPatch], None],
    check: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check()

    plant_law(monkeypatch)

    with pytest.raises(AssertionError):
        check()
