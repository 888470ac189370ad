"""Charges of parts: whole leaves for each virtual cluster, and nothing for guests."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.sharing.charges import DevicePart, charge

LEAF = 20
PARTS = st.lists(
    st.builds(
        DevicePart,
        vc=st.sampled_from("ab"),
        memory=st.none() | st.integers(1, LEAF),
        compute=st.none() | st.integers(1, 20).map(lambda twentieths: Fraction(twentieths, 20)),
        guest=st.booleans(),
    ),
    max_size=12,
)


def part(
    memory: int | None, compute: str | None = None, vc: str = "a", **more: bool
) -> DevicePart:
    return DevicePart(vc=vc, memory=memory, compute=Fraction(compute) if compute else None, **more)


@given(parts=PARTS)
def test_leaves_cover_all_parts_and_no_part_needs_more_than_one(parts) -> None:
    charges = charge(parts, LEAF)

    assert charges.fits
    for vc, leaves in charges.leaves.items():
        own = [p for p in parts if p.vc == vc and not p.guest]
        memory = sum(LEAF if p.memory is None else p.memory for p in own)
        assert Fraction(memory, LEAF) <= leaves <= len(own)


@given(parts=PARTS)
def test_virtual_clusters_are_charged_as_if_they_were_alone(parts) -> None:
    together = charge(parts, LEAF).leaves

    for vc in together:
        assert together[vc] == charge([p for p in parts if p.vc == vc], LEAF).leaves[vc]


@given(parts=PARTS)
def test_guests_change_no_charge(parts) -> None:
    without = charge([p for p in parts if not p.guest], LEAF).leaves
    everyone = charge([replace(p, guest=True) for p in parts], LEAF)

    assert {vc: n for vc, n in charge(parts, LEAF).leaves.items() if n} == without
    assert not any(everyone.leaves.values())


@given(parts=PARTS, more=st.sampled_from("ab"))
def test_one_more_part_costs_at_most_one_leaf(parts, more) -> None:
    before = charge(parts, LEAF).leaves.get(more, 0)

    after = charge([*parts, part(LEAF // 4, vc=more)], LEAF).leaves[more]

    assert before <= after <= before + 1


def test_a_part_goes_where_the_least_memory_is_left() -> None:
    parts = [part(12, "0.1"), part(10, "0.1"), part(8, "0.1"), part(10, "0.1")]

    assert charge(parts, LEAF).leaves == {"a": 2}


def test_equal_memory_is_decided_by_the_least_compute() -> None:
    parts = [part(10, "0.3"), part(10, "0.8"), part(5, "0.2"), part(10, "0.7")]

    assert charge(parts, LEAF).leaves == {"a": 2}


def test_decimal_fractions_add_up_to_a_whole_device() -> None:
    parts = [part(1, "0.7"), part(1, "0.2"), part(1, "0.1")]

    assert charge(parts, LEAF).leaves == {"a": 1}


def test_compute_defaults_to_the_part_of_the_memory_rounded_up() -> None:
    assert charge([part(9), part(11)], LEAF).leaves == {"a": 1}
    assert charge([part(9), part(11)], 21).leaves == {"a": 1}
    assert charge([part(9, "0.45"), part(11, "0.6")], LEAF).leaves == {"a": 2}


def test_a_part_above_a_leaf_does_not_fit_and_is_not_charged() -> None:
    charges = charge([part(LEAF + 1), part(3)], LEAF)

    assert (charges.leaves, charges.fits) == ({"a": 1}, False)
    assert not charge([part(LEAF + 1, guest=True)], LEAF).fits
    assert not charge([part(1, "1.05")], LEAF).fits


def test_a_leaf_offers_memory() -> None:
    with pytest.raises(ValueError, match="must be positive"):
        charge([part(1)], 0)


@pytest.mark.parametrize(("memory", "compute"), [(0, None), (-1, None), (1, Fraction(0))])
def test_sizes_are_positive(memory, compute) -> None:
    with pytest.raises(ValueError, match="not positive"):
        DevicePart(vc="a", memory=memory, compute=compute)
