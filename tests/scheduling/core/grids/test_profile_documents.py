"""Profiles from jobs: hostile documents are refused, valid ones give grids."""

import copy
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.grids import GridInputError, GridState
from scheduling.core.grids.profile_documents import (
    MOST_CLASSES,
    MOST_LAYERS,
    profiled_estimates,
    read_profile,
)
from tests.factories.hybrid import layer_run, profile_document


def estimates(found: dict[str, Any], **changes: Any) -> list[Any]:
    training = {"batch": 32, "micro_batches": 4, "schedule": "1f1b", "max_tensor": None}
    return list(
        profiled_estimates(read_profile(found, device_type="a"), **{**training, **changes})
    )


def test_a_profile_gives_grids_of_which_more_devices_are_faster() -> None:
    found = estimates(profile_document())

    best = {
        n: min(one.step_seconds for one in found if one.grid.devices == n and one.plan)
        for n in (1, 2, 4)
    }
    assert best[1] > best[2] > best[4]
    # 4 micro-batches of 8 samples through 8 layers, with 3 ms a sample and layer, and updates.
    assert best[1] == pytest.approx(4 * 8 * 8 * 3e-3 + 8e-4, rel=1e-6)
    assert {(one.grid.devices, one.grid.stages) for one in found} >= {(4, 1), (4, 2), (4, 4)}


def test_a_limit_of_the_tensor_width_holds() -> None:
    for one in estimates(profile_document(), max_tensor=1):
        assert one.plan is None or {stage.shape.tensor for stage in one.plan.stages} == {1}


def test_a_model_that_does_not_fit_is_too_large_on_one_device_and_fits_on_several() -> None:
    found = {
        (one.grid.devices, one.grid.stages): one.state
        for one in estimates({**profile_document(), "device_memory": 40 << 20})
    }

    assert found[1, 1] is GridState.TOO_LARGE
    assert GridState.POSSIBLE in found.values()


def broken(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    found = copy.deepcopy(profile_document())
    at: Any = found
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return found


RUN = ("classes", 0, "runs", 0)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("version",), 2),
        (("more",), 1),
        (("layers",), []),
        (("layers",), ["Block"] * (MOST_LAYERS + 1)),
        (("layers",), ["Other"]),
        (("layers",), ["Bl\nock"]),
        (("classes",), [{}] * (MOST_CLASSES + 1)),
        (("classes", 0, "name"), "B" * 81),
        (("classes", 0, "runs"), [layer_run(2, 8)]),
        ((*RUN, "forward_s"), float("nan")),
        ((*RUN, "forward_s"), 0),
        ((*RUN, "backward_s"), -1.0),
        ((*RUN, "backward_s"), True),
        ((*RUN, "flops"), 1e19),
        ((*RUN, "flops"), 10**400),
        ((*RUN, "tensor"), 0),
        ((*RUN, "samples"), 1.5),
        ((*RUN, "exchanges"), [["all_reduce", 1, 1]]),
        (("classes", 0, "runs", 4, "exchanges"), []),
        (("links",), [["send", 4, 4096, 1.0]]),
        (("links",), [["send", 2, 4096, 1.0]] * 2),
        (("links",), [["steal", 2, 4096, 1.0]]),
        (("device_memory",), "much"),
        (("state_factor",), None),
        (("recompute",), "no"),
        (("software",), []),
        (("software",), {"torch": "2.13.0", "note": "a\x00"}),
        (("classes", 0, "note"), float("nan")),
        ((*RUN, "note"), float("inf")),
    ],
)
def test_a_wrong_value_is_refused(path: tuple[Any, ...], value: Any) -> None:
    with pytest.raises(GridInputError):
        read_profile(broken(path, value), device_type="a")


@pytest.mark.parametrize("key", sorted(profile_document()))
def test_a_document_without_one_entry_is_refused(key: str) -> None:
    found = profile_document()
    del found[key]

    with pytest.raises(GridInputError):
        read_profile(found, device_type="a")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)


@given(JSON, st.sampled_from(sorted(profile_document())))
def test_any_json_is_refused_or_read(value: Any, key: str) -> None:
    for found in (value, {**profile_document(), key: value}):
        try:
            read_profile(found, device_type="a")
        except GridInputError:
            continue


def test_the_largest_accepted_profile_is_planned_in_bounded_time() -> None:
    runs = [layer_run(tensor, samples) for tensor in (1, 2, 4, 8) for samples in (8, 4, 2, 1)]
    found = profile_document(MOST_LAYERS)
    found["classes"] = [{"name": f"c{n}", "runs": runs} for n in range(MOST_CLASSES)]
    found["layers"] = [f"c{n % MOST_CLASSES}" for n in range(MOST_LAYERS)]

    begun = time.process_time()
    estimates(found, batch=4096, micro_batches=64)

    assert time.process_time() - begun < 60.0
