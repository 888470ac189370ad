"""Profiles of variable batches: checks of reported documents, and rates before the first run."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.performance.batch_profiles import (
    MOST_POINTS,
    BatchProfileError,
    ProfiledSpeeds,
    read_batch_profile,
)
from scheduling.core.performance.live import LiveModel
from scheduling.core.policies import make_policy
from scheduling.core.policy_interface import Kind, Scale, Shape, Terms
from scheduling.core.values import JobFacts, RunObservation, Timed
from tests.factories.batch_profiles import batch_profile, point
from tests.strategies.policy_views import make_job, make_view

TERMS = Terms(tenant=1, kind=Kind.ADAPTIVE, batch=64, max_batch=1024, max_local_batch=256)
SCALE = Scale(minimum=1, maximum=16)


def profile(kind: str, scale: float = 1.0) -> tuple[Timed, ...]:
    return read_batch_profile(batch_profile(scale), device_type=kind).points


def job(job_id: int = 1, **more: Any):
    return make_job(job_id, 1, kind=Kind.ADAPTIVE, scale=SCALE, **more)


def model(known: JobFacts, **more: Any) -> tuple[LiveModel, Any]:
    one = job(batch=64, max_batch=1024, max_local_batch=256, **more)
    return LiveModel([one], {1: known}), one


def test_a_valid_profile_has_its_points_in_order():
    found = read_batch_profile(batch_profile(), device_type="a")

    assert [one.batch for one in found.points] == [16, 32, 64]
    assert {(one.type, one.nodes, one.devices) for one in found.points} == {("a", 1, 1)}
    assert (found.noise, found.seconds, found.software) == ((1.0, 400.0), 2.5, "2.13.0")


def test_a_noise_without_a_number_above_0_is_unknown_as_in_reports_of_runs():
    found = read_batch_profile({**batch_profile(), "noise": [0.0, 0]}, device_type="a")

    assert found.noise is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"version": 2},
        {"points": []},
        {"points": "no"},
        {"points": [point(16)] * (MOST_POINTS + 1)},
        {"points": [{**point(16), "seconds": 0.0}]},
        {"points": [{**point(16), "seconds": float("nan")}]},
        {"points": [{**point(16), "steps": True}]},
        {"points": [{**point(16), "accumulation": 17}]},
        {"points": [{**point(16), "extra": 1}]},
        {"noise": [1.0]},
        {"noise": [-1.0, 1.0]},
        {"noise": [float("inf"), 1.0]},
        {"noise": [1.0, 10**400]},
        {"seconds": -1},
        {"seconds": 10**400},
        {"points": [{**point(16), "seconds": 5e-324}]},
        {"points": [{**point(16), "seconds": 10**400}]},
        {"points": [{**point(16), "batch": 10**400}]},
        {"other": 1},
    ],
)
def test_a_hostile_profile_is_rejected(wrong: dict[str, Any]):
    with pytest.raises(BatchProfileError):
        read_batch_profile({**batch_profile(), **wrong}, device_type="a")


@given(
    st.dictionaries(
        st.sampled_from(["version", "software", "points", "noise", "seconds", "x"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner),
            max_leaves=6,
        ),
    )
)
def test_any_document_is_read_or_rejected(document: dict[str, Any]):
    try:
        found = read_batch_profile({"version": 1, **document}, device_type="a")
    except BatchProfileError:
        return
    assert all(one.seconds > 0.0 for one in found.points)


def test_types_are_compared_at_the_largest_common_batch():
    speeds = ProfiledSpeeds((*profile("a"), *profile("b", 3.0)[:2]))

    assert speeds.ratio("a", "b") == pytest.approx(3.0)
    assert speeds.ratio("a", "c") is None
    assert speeds.samples_per_second("c") == 0.0


def test_a_profile_replaces_the_linear_guess_before_the_first_run():
    noise = (400.0, 1.0)  # larger batches train no faster
    profiled = JobFacts(
        terms=TERMS, profile=(*profile("a"), *profile("b", 4.0)), profile_noise=noise
    )
    known, one = model(profiled)

    fast, slow = (known.rate(one, Shape(kind, 1, 1)) for kind in "ab")

    assert fast / slow == pytest.approx(4.0, rel=0.01)
    # 64 samples take 0.1 s + 64 * 1 ms on a.
    assert fast == pytest.approx(1 / 0.164, rel=0.05)
    assert known.profiled(one) == {}
    assert known.rate(one, Shape("c", 1, 1)) == pytest.approx(fast)


def test_without_noise_the_profile_gives_the_speed_of_one_device():
    known, one = model(JobFacts(terms=TERMS, profile=profile("a")))

    assert known.rate(one, Shape("a", 1, 2)) == pytest.approx(2 * known.speed(one, "a"))
    assert known.speed(one, "a") == pytest.approx(1 / 0.164)


def test_runs_on_one_type_are_projected_by_the_ratio_of_profiles():
    run = RunObservation(type="a", nodes=1, devices=4, seconds=100.0, steps=100, samples=6400.0)
    facts = JobFacts(terms=TERMS, profile=(*profile("a"), *profile("b", 4.0)), seen=(run,))
    known, one = model(facts)

    assert known.rate(one, Shape("a", 1, 4)) == pytest.approx(1.0)
    assert known.rate(one, Shape("b", 1, 4)) == pytest.approx(0.25)


@pytest.mark.parametrize("policy", ["sia", "tessera"])
def test_a_new_job_starts_on_the_type_on_which_it_is_fast(policy: str):
    for fast, slow in ("ab", "ba"):
        facts = JobFacts(
            terms=TERMS,
            profile=(*profile(fast), *profile(slow, 4.0)),
            profile_noise=(1.0, 400.0),
        )
        known, one = model(facts)
        view = make_view([one], {"a": 8, "b": 8}, model=known)

        plan, _ = make_policy(policy, {}).plan(view, {})

        assert {part.type for part in plan.allocs[1].parts} == {fast}
