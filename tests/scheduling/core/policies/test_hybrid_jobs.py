"""Every policy runs hybrid jobs, and only on shapes with a grid."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.performance.live import LiveModel
from scheduling.core.policies import POLICIES, make_policy
from scheduling.core.policies.plans import check_plan, settle
from scheduling.core.policy_interface import BestGrid, JobPhase, Kind, Scale, Step
from tests.strategies.policy_views import applied, make_job, make_view

CAPACITY = {"a": 4, "b": 4}
NODES = {"a": 2, "b": 4}
#: Rigid policies: they keep the requested size.
RESIZERS = {"crius", "elasticflow", "gandiva", "optimus", "pollux", "sia", "tessera"}


def row(kind, devices, rate):
    return BestGrid(type=kind, devices=devices, nodes=-(-devices // NODES[kind]), rate=rate)


@st.composite
def hybrid_jobs(draw, job_id):
    """A hybrid job with grids at some shapes, at least one at its requested size."""
    gang = draw(st.sampled_from([1, 2, 4]))
    rates = st.sampled_from([0.5, 1.0, 1.5, 3.0])
    rows = [
        row(kind, devices, draw(rates))
        for kind in sorted(NODES)
        for devices in (1, 2, 4)
        if draw(st.booleans())
    ]
    if not any(one.devices == gang for one in rows):
        rows.append(row(draw(st.sampled_from(sorted(NODES))), gang, draw(rates)))
    job = make_job(
        job_id,
        gang,
        kind=Kind.ELASTIC,
        scale=Scale(minimum=1, maximum=4, step=Step.POWER_OF_TWO),
        owner=draw(st.integers(1, 2)),
        submitted=100_000.0 - draw(st.sampled_from([0.0, 600.0, 7200.0])),
        estimate=draw(st.sampled_from([None, 9000.0])),
        deadline=draw(st.sampled_from([None, 150_000.0])),
        facts={"steps_left": draw(st.sampled_from([None, 40_000.0])), "last_run": None},
    )
    return replace(job, grids=tuple(sorted(rows, key=lambda one: (one.type, one.devices))))


@st.composite
def hybrid_views(draw):
    jobs = [draw(hybrid_jobs(job_id)) for job_id in range(1, draw(st.integers(1, 6)) + 1)]
    return make_view(jobs, CAPACITY, model=LiveModel(jobs, {}))


@pytest.mark.parametrize("name", sorted(POLICIES))
@settings(max_examples=25, deadline=None)
@given(view=hybrid_views())
def test_a_plan_has_a_grid_for_each_hybrid_job_in_every_round(name, view):
    policy = make_policy(name, {"generations": 8} if name == "pollux" else {})
    state: Mapping[str, Any] = {}
    for number in range(3):
        view = replace(view, now=view.now + 400.0 * number, round_number=number)
        plan, state = policy.plan(view, state)
        check_plan(view, plan)
        for job_id, alloc in settle(view, plan).items():
            job = next(one for one in view.jobs if one.id == job_id)
            shapes = {(one.type, one.devices) for one in job.grids}
            assert {(part.type, alloc.devices) for part in alloc.parts} <= shapes
            assert len(alloc.parts) == 1
        view = applied(view, plan)
        view = replace(view, model=LiveModel(view.jobs, {}))


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_one_hybrid_job_alone_runs(name):
    job = make_job(
        1, 2, kind=Kind.ELASTIC, scale=Scale(minimum=1, maximum=4, step=Step.POWER_OF_TWO)
    )
    job = replace(
        job, grids=(row("a", 2, 1.0), row("b", 1, 1.0), row("b", 2, 1.9), row("b", 4, 3.5))
    )
    view = make_view([job], CAPACITY, model=LiveModel([job], {}))
    state: Mapping[str, Any] = {}
    for number in range(4):
        view = replace(view, now=view.now + 400.0, round_number=number)
        plan, state = make_policy(name, {}).plan(view, state)
        view = applied(view, plan)
    assert view.jobs[0].phase is JobPhase.RUNNING


@pytest.mark.parametrize("name", sorted(POLICIES.keys() - RESIZERS))
def test_other_policies_keep_the_requested_size(name):
    job = make_job(
        1, 2, kind=Kind.ELASTIC, scale=Scale(minimum=1, maximum=4, step=Step.POWER_OF_TWO)
    )
    job = replace(job, grids=(row("b", 1, 1.0), row("b", 2, 1.9), row("b", 4, 3.5)))
    view = make_view([job], CAPACITY, model=LiveModel([job], {}))

    plan, _state = make_policy(name, {}).plan(view, {})

    assert settle(view, plan)[1].sizes == ((2, "b"),)
