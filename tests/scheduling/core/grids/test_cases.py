"""Recorded cases: what the planner may read, what it reports, and its figures on the records."""

import copy
import json

import pytest

from scheduling.core.grids.cases import estimate_lines, pipeline_lines, regret_lines
from scheduling.core.grids.model import GridInputError

PIPELINE = {"forward": [1, 1], "backward": [2, 2], "transfer": [1], "micro_batches": 2}


def _document(seconds, stages=2):
    """One configuration whose plans have these step times by (data, tensor)."""
    plans = [
        {"stages": stages, "data": data, "tensor": tensor, "step_s": time}
        for (data, tensor), time in seconds
    ]
    return {"bert": {"1_a100_1_n_16_d": {"plans": plans}}}


EIGHT = [((8, 1), 5.0), ((4, 2), 4.0), ((2, 4), 3.0), ((1, 8), 9.0)]


def _plan(data, tensor, stages=2):
    return {"stages": stages, "data": data, "tensor": tensor}


def test_pipelines_are_replayed_by_index():
    lines = list(pipeline_lines([PIPELINE, PIPELINE | {"transfer": [0]}]))

    assert lines == [
        {"index": 0, "gpipe_s": 11, "one_f_one_b_s": 11},
        {"index": 1, "gpipe_s": 9, "one_f_one_b_s": 9},
    ]


@pytest.mark.parametrize("nothing", [{}, {"transfer": None}, {"transfer": []}])
def test_a_pipeline_of_one_stage_has_no_transfers(nothing):
    (line,) = pipeline_lines([{"forward": [1], "backward": [2], "micro_batches": 2, **nothing}])

    assert line == {"index": 0, "gpipe_s": 6, "one_f_one_b_s": 6}


def test_an_estimate_names_the_chosen_plan_and_all_that_it_looked_up():
    (line,) = estimate_lines(_document(EIGHT))

    assert line == {
        "model": "bert",
        "grid": "1_a100_1_n_16_d",
        "stages": 2,
        "chosen": _plan(2, 4),
        "chosen_step_s": 3.0,
        "best_step_s": 3.0,
        "explored": [_plan(4, 2), _plan(2, 4)],
        "plans": 4,
    }


def test_a_plan_out_of_reach_is_only_in_the_best_step_time():
    far = [((8, 1), 5.0), ((4, 2), 6.0), ((2, 4), 3.0), ((1, 8), 9.0)]

    (line,) = estimate_lines(_document(far))

    assert (line["chosen"], line["chosen_step_s"]) == (_plan(8, 1), 5.0)
    assert (line["explored"], line["best_step_s"]) == ([_plan(8, 1)], 3.0)


def test_times_of_plans_that_were_not_looked_up_change_nothing():
    sixteen = [((16, 1), 5.0), ((8, 2), 4.0), ((4, 4), 7.0), ((2, 8), 6.0), ((1, 16), 9.0)]
    (line,) = estimate_lines(_document(sixteen, 1))
    known = {(16, 1), (4, 4), (1, 16)} | {(p["data"], p["tensor"]) for p in line["explored"]}
    changed = [(s, time if s in known else 0.001) for s, time in sixteen]

    (other,) = estimate_lines(_document(changed, 1))

    assert known != {shape for shape, _ in sixteen}
    assert {**other, "best_step_s": None} == {**line, "best_step_s": None}


def test_a_plan_that_was_recorded_twice_counts_once():
    (line,) = estimate_lines(_document([((1, 1), 3.0), ((1, 1), 2.0), ((1, 1), 4.0)]))

    assert (line["chosen_step_s"], line["best_step_s"], line["plans"]) == (2.0, 2.0, 1)
    assert line["explored"] == [_plan(1, 1)]


@pytest.mark.parametrize("missing", [None, float("inf"), -1])
def test_plans_without_a_time_cannot_run(missing):
    plans = [((2, 1), missing), ((1, 2), 2.0)]

    (line,) = estimate_lines(_document(plans))

    assert (line["chosen"], line["plans"]) == (_plan(1, 2), 1)


def test_stage_counts_are_answered_one_by_one():
    document = _document([((2, 1), 2.0), ((1, 2), 3.0)], 2)
    document["bert"]["1_a100_1_n_16_d"]["plans"] += [
        {"stages": 1, "data": 4, "tensor": 1, "step_s": 4.0}
    ]

    assert [line["stages"] for line in estimate_lines(document)] == [1, 2]


def test_regrets_by_hand():
    document = _document([((8, 1), 5.0), ((4, 2), 4.5), ((2, 4), 4.0), ((1, 8), 9.0)])

    two, three = regret_lines(document)

    assert (two["profiled_shapes"], three["profiled_shapes"]) == (2, 3)
    assert two["regret_profiled"]["max"] == pytest.approx(0.25)
    assert two["regret_tuned"]["mean"] == pytest.approx(0.125)
    assert three["regret_profiled"]["mean"] == pytest.approx(0.125)
    assert three["regret_tuned"]["max"] == 0
    assert (two["explored_stages"], three["explored_stages"]) == (0.5, 0.5)
    assert two["reached"]["min"] == pytest.approx(4 / 4.5)


def test_an_empty_document_has_no_regrets():
    assert [line["configurations"] for line in regret_lines({})] == [0, 0]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "document: this is not a list"),
        ([3], r"\[0\]: this is not an object"),
        ([{}], r"\[0\].forward: this is not a list"),
        ([PIPELINE | {"forward": [1]}], "do not fit"),
        ([PIPELINE | {"forward": [1, "x"]}], r"\[0\].forward: 'x' is not a valid number"),
        ([PIPELINE | {"forward": [1, float("nan")]}], "nan is not a valid number"),
        ([PIPELINE | {"forward": [1, -1]}], "-1 is not a valid number"),
        ([PIPELINE | {"forward": [1, 10**400]}], "is not a valid number"),
        ([PIPELINE | {"micro_batches": 0}], r"micro_batches: 0 is not a valid number"),
        ([PIPELINE | {"micro_batches": True}], r"micro_batches: True is not"),
    ],
)
def test_documents_that_are_not_pipelines_are_refused(document, message):
    with pytest.raises(GridInputError, match=message):
        list(pipeline_lines(document))


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "document: this is not an object"),
        ({"bert": 3}, "bert: this is not an object"),
        ({"bert": {"x": {}}}, "bert.x.plans: this is not a list"),
        (_document([((3, 1), 1.0)]), "data: 3 is not a power of two"),
        (_document([((1, 1), -2.0)]), "-2.0 is not a valid number"),
        (_document([((1, 1), 1.0), ((2, 1), 1.0)]), "differ from other plans"),
    ],
)
def test_documents_that_are_not_estimates_are_refused(document, message):
    with pytest.raises(GridInputError, match=message):
        list(estimate_lines(document))


@pytest.fixture(scope="module")
def records(shared_dir):
    path = shared_dir / "cases" / "crius" / "estimates.json"
    if not path.is_file():
        pytest.skip(f"no recorded estimates at {path}")
    return json.loads(path.read_text())


def test_regrets_on_the_recorded_estimates(records):
    paper, ours = regret_lines(records)

    assert ours["regret_tuned"]["mean"] <= 0.005
    assert ours["regret_tuned"]["p99"] <= 0.05
    assert ours["regret_tuned"]["max"] <= 0.1
    assert ours["explored_stages"] <= 1 / 2
    assert ours["explored_one_stage"] <= 2 / 3
    assert ours["reached"]["mean"] >= 0.995
    assert ours["reached"]["min"] >= 0.9
    # The two profiles of the paper leave large regrets on these records.
    assert paper["regret_tuned"]["max"] > 1


def test_explored_plans_hold_the_chosen_one_and_are_recorded(records):
    for line in estimate_lines(records):
        plans = records[line["model"]][line["grid"]]["plans"]
        times: dict[tuple[int, int], float] = {}
        for plan in plans:
            if plan["stages"] == line["stages"]:
                key = (plan["data"], plan["tensor"])
                times[key] = min(plan["step_s"], times.get(key, plan["step_s"]))
        explored = [(p["data"], p["tensor"]) for p in line["explored"]]

        assert len(times) == line["plans"]
        assert len(set(explored)) == len(explored)
        assert line["chosen_step_s"] == min(times[key] for key in explored)
        assert line["best_step_s"] == min(times.values())
        assert (line["chosen"]["data"], line["chosen"]["tensor"]) in explored


def test_answers_in_the_records_change_nothing(records):
    plain = list(estimate_lines(records))
    marked = copy.deepcopy(records)
    for configurations in marked.values():
        for configuration in configurations.values():
            configuration["searched_s"] = configuration["expect"] = 0.001

    assert list(estimate_lines(marked)) == plain
