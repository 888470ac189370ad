"""Weighted max-min fairness of whole gangs."""

from dataclasses import replace
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.cells import CellEngine
from scheduling.core.round.fairness import in_turn, tenant_weights
from tests.factories.rounds import LANGUAGE, SPEC, VISION

NAMES = "abcd"
WEIGHTS = st.fixed_dictionaries({name: st.integers(1, 9) for name in NAMES})
LINES = st.fixed_dictionaries({name: st.lists(st.integers(1, 8), max_size=8) for name in NAMES})
HELD = st.fixed_dictionaries({name: st.integers(0, 12) for name in NAMES})


def split(
    lines: dict[str, list[int]], held: dict[str, int], weights: dict[str, int], idle: int
) -> tuple[dict[str, int], list[tuple[str, int, dict[str, int]]]]:
    """What each has in the end, and every offer with what everybody had then."""
    has, left = dict(held), idle
    offers: list[tuple[str, int, dict[str, int]]] = []

    def offer(entry: tuple[str, int]) -> int:
        nonlocal left
        name, size = entry
        offers.append((name, size, dict(has)))
        taken = size if size <= left else 0
        left -= taken
        has[name] += taken
        return taken

    in_turn({n: [(n, size) for size in line] for n, line in lines.items()}, held, weights, offer)
    return has, offers


@given(lines=LINES, held=HELD, weights=WEIGHTS, idle=st.integers(0, 100))
def test_every_gang_is_offered_once_and_in_its_own_order(
    lines: dict[str, list[int]], held: dict[str, int], weights: dict[str, int], idle: int
) -> None:
    _, offers = split(lines, held, weights, idle)

    for name in NAMES:
        assert [size for other, size, _ in offers if other == name] == lines[name]


@given(lines=LINES, held=HELD, weights=WEIGHTS, idle=st.integers(0, 100))
def test_the_one_with_least_per_weight_chooses(
    lines: dict[str, list[int]], held: dict[str, int], weights: dict[str, int], idle: int
) -> None:
    _, offers = split(lines, held, weights, idle)

    for i, (name, _, has) in enumerate(offers):
        hungry = {other for other, _, _ in offers[i:]}
        level = Fraction(has[name], weights[name])
        assert level == min(Fraction(has[other], weights[other]) for other in hungry)


@given(lines=LINES, weights=WEIGHTS, idle=st.integers(0, 100))
def test_whole_gangs_come_within_one_gang_of_the_ideal(
    lines: dict[str, list[int]], weights: dict[str, int], idle: int
) -> None:
    """Nobody is more than one gang above somebody who still waits for a gang that would fit."""
    unit = {name: [1] * len(line) for name, line in lines.items()}

    has, _ = split(unit, dict.fromkeys(NAMES, 0), weights, idle)

    wants = {name: len(line) for name, line in unit.items()}
    assert sum(has.values()) == min(idle, sum(wants.values()))
    for name in NAMES:
        if has[name] < wants[name]:
            least = Fraction(has[name], weights[name])
            assert all(Fraction(has[o] - 1, weights[o]) <= least for o in NAMES if has[o])


@given(lines=LINES, held=HELD, weights=WEIGHTS, idle=st.integers(0, 100))
def test_the_order_of_the_lines_changes_nothing(
    lines: dict[str, list[int]], held: dict[str, int], weights: dict[str, int], idle: int
) -> None:
    turned = dict(reversed(lines.items()))

    assert split(lines, held, weights, idle)[0] == split(turned, held, weights, idle)[0]


def test_twice_the_weight_gets_twice_the_devices() -> None:
    lines = {"vision": [1] * 30, "language": [1] * 30}

    has, _ = split(lines, {"vision": 0, "language": 0}, {"vision": 1, "language": 2}, 30)

    assert has == {"vision": 10, "language": 20}


def test_what_is_borrowed_already_counts() -> None:
    lines = {"vision": [2] * 9, "language": [2] * 9}

    has, _ = split(lines, {"vision": 8, "language": 0}, {}, 8)

    assert has == {"vision": 8, "language": 8}


def test_a_gang_that_does_not_fit_leaves_the_turn_to_the_next() -> None:
    has, _ = split({"vision": [9, 1], "language": [3]}, {"vision": 0, "language": 0}, {}, 4)

    assert has == {"vision": 1, "language": 3}


def test_an_entry_without_devices_counts_as_zero() -> None:
    order: list[str] = []

    def offer(name: str) -> int:
        order.append(name)
        return 1

    in_turn({"new": ["new"] * 2, "old": ["old"] * 2}, {"old": 1}, {}, offer)

    assert order == ["new", "new", "old", "old"]


def test_the_weight_of_a_tenant_is_its_guarantee_but_at_least_one() -> None:
    third = replace(VISION, id=3, name="no-guarantee", tenant=3)

    weights = tenant_weights(CellEngine(SPEC), [VISION, LANGUAGE, third])

    assert weights == {1: 8, 2: 16, 3: 1}
