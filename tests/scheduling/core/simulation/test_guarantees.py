"""Guarantees by number of devices."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.cells import Quota, VcSpec
from scheduling.core.cells.feasibility import feasible
from scheduling.core.round.engine_setup import empty_engine, guaranteed_devices
from scheduling.core.simulation.guarantees import GuaranteeError, with_guarantee
from tests.factories.rounds import SPEC

FREE = 8
"""Devices of one node; language-a has the other two of three nodes."""


def devices_of(spec, vc="vision-a"):
    return guaranteed_devices(empty_engine(spec), vc)


@given(devices=st.integers(0, FREE))
def test_a_number_of_devices_becomes_cells_that_fit(devices):
    changed = with_guarantee(SPEC, "vision-a", {"a": devices})

    assert sum(devices_of(changed).values()) == devices
    assert devices_of(changed, "language-a") == devices_of(SPEC, "language-a")
    assert feasible(changed).ok


@given(devices=st.integers(FREE + 1, 30))
def test_more_than_the_unclaimed_devices_is_refused_with_the_level(devices):
    with pytest.raises(GuaranteeError) as refused:
        with_guarantee(SPEC, "vision-a", {"a": devices})

    assert (refused.value.devices, refused.value.possible) == (devices, FREE)
    assert "at level a" in refused.value.witness


def test_the_largest_levels_that_fit_are_chosen():
    changed = with_guarantee(SPEC, "vision-a", {"a": 7})

    assert changed.virtual_clusters["vision-a"].quotas == (
        Quota(chain="a-node", level="a-socket", count=1),
        Quota(chain="a-node", level="a-pcie", count=1),
        Quota(chain="a-node", level="a", count=1),
    )


def test_an_equal_number_keeps_the_cells():
    halves = (Quota(chain="a-node", level="a-socket", count=2),)
    spec = replace(
        SPEC, virtual_clusters={**SPEC.virtual_clusters, "vision-a": VcSpec(quotas=halves)}
    )

    assert with_guarantee(spec, "vision-a", {"a": 8}) is spec


def test_pinned_cells_count_and_go_only_if_the_number_is_smaller():
    pinned = VcSpec(quotas=(), pinned={"mine": "node-1/0"})
    spec = replace(SPEC, virtual_clusters={"vision-a": pinned})

    larger = with_guarantee(spec, "vision-a", {"a": 6}).virtual_clusters["vision-a"]
    smaller = with_guarantee(spec, "vision-a", {"a": 2}).virtual_clusters["vision-a"]

    assert (larger.pinned, devices_of(spec)) == (pinned.pinned, {"a": 4})
    assert larger.quotas == (Quota(chain="a-node", level="a-pcie", count=1),)
    assert (smaller.pinned, smaller.quotas) == (
        {}, (Quota(chain="a-node", level="a-pcie", count=1),),
    )  # fmt: skip


def test_an_unknown_type_is_refused():
    with pytest.raises(GuaranteeError):
        with_guarantee(SPEC, "vision-a", {"b": 1})
