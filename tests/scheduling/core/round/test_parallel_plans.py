"""Fingerprints, barred plans and the choice of a plan at a start."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.jobspec import Parallel, PlanChoice, parse
from scheduling.core.round.parallel_plans import (
    SLOWER_FACTOR,
    GridRow,
    PlanExclusion,
    PlanRun,
    PlanSource,
    barred_plans,
    best_grids,
    fingerprint_of,
    measured_seconds,
    plan_of_start,
    rows_from_json,
    rows_to_json,
)
from tessera.train.hybrid.plans import Stage, read_plan

AUTO = Parallel(batch=32, micro_batches=4)
GIVEN = replace(AUTO, stages=(Stage(0, 3, data=2), Stage(3, 6, tensor=2)))


def row(devices: int, stages: int, seconds: float, kind: str = "a") -> GridRow:
    width = devices // stages
    cut = [round(6 * k / stages) for k in range(stages + 1)]
    plan = AUTO.plan_of(tuple(Stage(cut[k], cut[k + 1], data=width) for k in range(stages)))
    assert plan is not None
    return GridRow(
        type=kind,
        devices=devices,
        stages=stages,
        state="possible",
        step_seconds=seconds,
        plan=plan.document(),
        stage_bytes=(1.0,) * stages,
    )


ROWS = (row(2, 1, 1.0), row(2, 2, 1.5), row(4, 1, 0.9), row(4, 2, 0.6), row(4, 4, 0.6))


def run(of: GridRow, *, factor: float = 1.0, steps: int = 100, failure: str = "") -> PlanRun:
    return PlanRun(
        type=of.type,
        plan_id=of.plan_id,
        predicted=of.step_seconds,
        steps=steps,
        seconds=steps * of.step_seconds * factor,
        failure_class=failure,
    )


def start(parallel: Parallel, devices: int, *runs: PlanRun, rows: tuple[GridRow, ...] = ROWS):
    table = best_grids(rows, runs, {"a": 4})
    return plan_of_start(parallel, table, device_type="a", nodes=1, devices=devices)


def test_the_fastest_grid_of_a_size_is_chosen_and_the_one_with_fewer_stages_of_equal_ones() -> (
    None
):
    table = best_grids(ROWS, (), {"a": 2})

    assert [(one.devices, one.stages, one.nodes) for one in table] == [(2, 1, 1), (4, 2, 2)]
    chosen = start(AUTO, 4)
    assert chosen is not None
    assert (chosen.plan, chosen.source) == (ROWS[3].plan, PlanSource.PROFILED)
    assert chosen.predicted == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("failure", "steps", "bar"),
    [
        ("resource-limit", 0, PlanExclusion.MEMORY),
        ("resource-limit", 90, PlanExclusion.MEMORY),
        ("user", 0, PlanExclusion.FAILED),
        ("user", 90, None),
        ("node", 0, None),
        ("preempted", 0, None),
    ],
)
def test_a_plan_that_failed_is_barred_and_the_next_one_taken(failure, steps, bar) -> None:
    failed = run(ROWS[3], steps=steps, failure=failure)

    assert barred_plans([failed]).get(("a", ROWS[3].plan_id)) == bar
    chosen = start(AUTO, 4, failed)
    assert chosen is not None
    assert chosen.plan == (ROWS[4] if bar else ROWS[3]).plan


def test_a_plan_is_barred_for_slowness_only_after_enough_steps_and_seconds() -> None:
    slow = SLOWER_FACTOR + 0.1

    assert barred_plans([run(ROWS[3], factor=slow)]) == {
        ("a", ROWS[3].plan_id): PlanExclusion.SLOWER
    }
    assert not barred_plans([run(ROWS[3], factor=SLOWER_FACTOR - 0.1)])
    assert not barred_plans([run(ROWS[3], factor=slow, steps=19)])
    assert not barred_plans([replace(run(ROWS[3], factor=slow), seconds=29.0)])
    assert not barred_plans([replace(run(ROWS[3], factor=slow), predicted=None)])


def test_of_plans_that_were_all_slower_the_fastest_remains() -> None:
    runs = [run(one, factor=factor) for one, factor in zip(ROWS[2:], (2.0, 4.0, 2.5), strict=True)]

    chosen = start(AUTO, 4, *runs)

    assert chosen is not None
    assert (chosen.plan, chosen.source) == (ROWS[4].plan, PlanSource.MEASURED)
    assert chosen.predicted == pytest.approx(1.5)


def test_a_measured_time_replaces_the_predicted_one() -> None:
    runs = [run(ROWS[3], factor=1.4), run(ROWS[3], factor=1.4)]

    assert measured_seconds(runs)["a", ROWS[3].plan_id] == pytest.approx(0.84)
    chosen = start(AUTO, 4, *runs)
    assert chosen is not None
    assert chosen.plan == ROWS[4].plan


def test_without_an_estimate_the_stages_of_the_owner_are_scaled_or_replaced_by_replicas() -> None:
    at_requested, at_twice, below = (start(GIVEN, n, rows=()) for n in (4, 8, 2))

    assert start(AUTO, 4, rows=()) is None
    for chosen, source, devices in (
        (at_requested, PlanSource.GIVEN, 4),
        (at_twice, PlanSource.GIVEN, 8),
        (below, PlanSource.REPLICAS, 2),
    ):
        assert chosen is not None
        assert (chosen.source, read_plan(chosen.plan).processes) == (source, devices)
        assert chosen.predicted is None


def test_a_fixed_plan_ignores_estimates() -> None:
    chosen = start(replace(GIVEN, plan=PlanChoice.FIXED), 4)

    assert chosen is not None
    assert chosen.source is PlanSource.GIVEN


@given(
    st.lists(
        st.tuples(
            st.sampled_from(ROWS),
            st.floats(0.1, 5.0),
            st.sampled_from(["", "user", "resource-limit", "node"]),
            st.sampled_from([0, 5, 100]),
        ),
        max_size=12,
    )
)
def test_no_barred_plan_that_failed_is_chosen_and_all_rates_are_positive(runs) -> None:
    seen = [run(one, factor=f, failure=bad, steps=steps) for one, f, bad, steps in runs]
    failed = {key for key, bar in barred_plans(seen).items() if bar is not PlanExclusion.SLOWER}

    table = best_grids(ROWS, seen, {})

    assert all(one.rate > 0 for one in table)
    assert not failed & {("a", str(one.plan["id"])) for one in table}
    left = {one.devices for one in ROWS if ("a", one.plan_id) not in failed}
    assert {one.devices for one in table} == left


def test_rows_survive_their_document() -> None:
    assert rows_from_json("a", rows_to_json(ROWS)) == ROWS


def test_a_fingerprint_covers_the_program_and_the_batch_but_not_size_plan_or_name() -> None:
    document: dict[str, Any] = {
        "name": "gpt",
        "virtual_cluster": "language-a",
        "roles": {"worker": {"command": "python train.py", "devices": 4}},
        "parallel": {"batch": 32},
    }
    role = document["roles"]["worker"]

    def of(owner=7, **changes):
        return fingerprint_of(parse({**document, **changes}), owner)

    same = of()
    assert of(name="other") == same
    assert of(owner=8) != same
    assert of(roles={"worker": {**role, "devices": 8}}) == same
    assert (
        of(roles={"chief": {**role, "devices": 1}}, parallel={"batch": 32, "profile": "only"})
        == same
    )
    assert of(roles={"worker": {**role, "command": "python other.py"}}) != same
    assert of(roles={"worker": {**role, "env": {"DEPTH": "8"}}}) != same
    assert of(parallel={"batch": 64}) != same
    assert of(source={"archive": "ab" * 32}) != same
    assert fingerprint_of(parse({k: v for k, v in document.items() if k != "parallel"}), 7) == ""
