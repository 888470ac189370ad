"""The drawn schedule of a step, with times that are worked out by hand."""

import itertools
from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import Client

from portal.web.job_schedule import MOST_PASSES, schedule_of
from scheduling.core.grids.model import Schedule
from scheduling.core.grids.pipeline import Pass, Pipeline, replay
from scheduling.core.round.parallel_plans import GridRow, rows_to_json
from scheduling.parallelism.models import ModelProfile
from scheduling.parallelism.views import GridView, JobParallelism, PlanView
from tenants.models import User
from tessera.train.hybrid.plans import ParallelPlan, Stage
from tests.factories.cluster import (
    NOW,
    make_cluster,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.hybrid import hybrid_job, plan_with
from tests.factories.scheduling import run_round


def found(
    plan: dict[str, Any], times: tuple[tuple[float, ...], ...] = (), *, ended: bool = False
) -> JobParallelism:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    shown = PlanView(
        attempt=1, at=now, ended_at=now if ended else None, type="a", devices=4, shape="",
        source="profiled", predicted=1.0, measured=None, plan=plan,
    )  # fmt: skip
    grid = GridView(
        type="a", devices=4, stages=len(plan["stages"]), state="possible", reason="", shape="",
        predicted=1.0, measured=None, samples_per_second=1.0, source="profiled",
        fullest_bytes=None, fullest_stage=None, limit_bytes=None, is_running=True, plan=plan,
        stage_seconds=times,
    )  # fmt: skip
    return JobParallelism(
        fingerprint="x", batch=4, micro_batches=2, schedule="1f1b", why="", grids=(grid,),
        plans=(shown,), profiles=(),
    )  # fmt: skip


def plan(stages: int, micro_batches: int, schedule: str = "1f1b") -> dict[str, Any]:
    parts = tuple(Stage(k, k + 1, data=1) for k in range(stages))
    made = ParallelPlan(parts, micro_batches=micro_batches, batch=micro_batches, schedule=schedule)
    return made.document()


def spans(stage: Any, seconds: float) -> list[tuple[str, float, float]]:
    return [
        (
            f"{'FB'[one.is_backward]}{one.micro_batch}",
            round(float(one.start) * seconds / 100, 3),
            round(float(one.width) * seconds / 100, 3),
        )
        for one in stage.passes
    ]


def test_a_pipeline_of_two_stages_runs_forward_and_backward_passes_in_turn():
    drawn = schedule_of(found(plan(2, 2), ((1.0, 2.0, 0.0, 0.0), (1.0, 2.0, 0.0, 0.0))))

    assert drawn is not None
    assert drawn.seconds == 9.0
    first, last = drawn.stages
    assert spans(first, 9.0) == [("F1", 0, 1), ("F2", 1, 1), ("B1", 4, 2), ("B2", 7, 2)]
    assert spans(last, 9.0) == [("F1", 1, 1), ("B1", 2, 2), ("F2", 4, 1), ("B2", 5, 2)]
    assert (first.order, last.order) == ("F1 F2 B1 B2", "F1 B1 F2 B2")
    assert first.busy == pytest.approx(6 / 9)
    assert drawn.idle == pytest.approx(3 / 9)


def test_gpipe_runs_all_forward_passes_first():
    drawn = schedule_of(found(plan(2, 3, "gpipe")))

    assert drawn is not None
    assert [stage.order for stage in drawn.stages] == ["F1 F2 F3 B1 B2 B3"] * 2


def test_without_a_profile_only_ratios_are_drawn():
    drawn = schedule_of(found(plan(2, 2)))

    assert drawn is not None
    assert (drawn.seconds, drawn.stages[0].forward) == (None, None)
    assert {one.width for one in drawn.stages[0].passes} == {"11.111", "22.222"}


def test_a_long_step_has_figures_and_no_drawing():
    drawn = schedule_of(found(plan(4, MOST_PASSES // 4)))

    assert drawn is not None
    assert [stage.passes for stage in drawn.stages] == [()] * 4
    assert all(stage.order.endswith("…") for stage in drawn.stages)
    assert drawn.idle == pytest.approx(3 / (MOST_PASSES // 4 + 3))


def test_a_job_without_a_running_plan_has_no_schedule():
    assert schedule_of(found(plan(2, 2), ended=True)) is None


@pytest.mark.parametrize("schedule", list(Schedule))
def test_the_recorded_passes_end_with_the_step_and_do_not_overlap(schedule: Schedule):
    passes: list[Pass] = []
    pipeline = Pipeline(
        forward=[1.0, 2.0, 1.5],
        backward=[2.0, 3.0, 2.5],
        transfer=[0.3, 0.1],
        micro_batches=5,
    )

    found = replay(schedule, pipeline, passes)

    assert found == replay(schedule, pipeline)
    assert max(one.end for one in passes) == found.seconds
    for stage in range(3):
        own = [one for one in passes if one.action.stage == stage]
        assert len(own) == 10
        assert all(a.end <= b.start + 1e-9 for a, b in itertools.pairwise(own))


@pytest.mark.django_db
def test_the_page_shows_the_schedule_with_a_table(client: Client):
    make_cluster()
    make_priority_classes()
    make_virtual_cluster(cells=2)
    job = hybrid_job()
    row = GridRow(
        type="a", devices=4, stages=2, state="possible", step_seconds=0.25,
        plan=plan_with(2).document(), stage_seconds=((0.01, 0.02, 0.001, 0.001),) * 2,
    )  # fmt: skip
    ModelProfile.objects.create(
        tenant=job.tenant, fingerprint=job.model_fingerprint, device_type="a",
        requested_at=NOW, measured_at=NOW, grids=rows_to_json([row]),
    )  # fmt: skip
    run_round()
    client.force_login(User.objects.get(username="alice"))

    page = client.get(f"/jobs/{job.pk}/parallelism/").content.decode()

    assert "Schedule of a step" in page
    assert "4 micro-batches pass through 2 stages (1f1b); stages wait" in page
    assert page.count('class="back"') == page.count('class="ahead"') == 8
    assert "F1 F2 B1 F3 B2 F4 B3 B4" in page
    assert "Times from the profile" in page
