"""The recorded cases: kinds of all outcomes, with the two differences that count as right."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from scheduling.core.cells.replay import Replay, replay_case
from tests.support.cell_invariants import check

ROOT = Path(__file__).resolve().parents[4]
SHARED = Path(os.environ.get("TESSERA_SHARED", ROOT.parent / "shared"))
CASES = SHARED / "cases" / "cells"
FILES = (
    "validation",
    "feature_demos",
    "lab6_sample",
    "limits",
    "reference_crashes",
    "reference_traces",
)
# An expectation that nobody reads here would be met by anything.
OUTCOME_KEYS = {
    *("kind", "source", "node", "node_one_of", "leafCellIsolation", "reason_contains"),
    *("message_contains", "code", "victims_subset_of"),
}
STATE_KEYS = {
    *("source", "groups_absent", "groups_state", "groups_lazy_preempted"),
    *("groups_not_lazy_preempted", "same_node_of_pods", "distinct_nodes_of_pods"),
    *("min_distinct_nodes", "buddy_pair", "node_sets", "pods", "leaf_cells"),
}


def _cases() -> Iterator[Any]:
    if not CASES.is_dir():
        reason = f"no recorded cases at {CASES}; set TESSERA_SHARED"
        yield pytest.param({}, {}, marks=pytest.mark.skip(reason=reason), id="missing")
        return
    for name in FILES:
        document = json.loads((CASES / f"{name}.json").read_text(encoding="utf-8"))
        for case in document["cases"]:
            config = case.get("config") or document["configs"][case["config_name"]]
            yield pytest.param(case, config, id=case["id"])


@pytest.mark.parametrize(("case", "config"), list(_cases()))
def test_every_outcome_is_of_the_recorded_kind(
    case: Mapping[str, Any], config: Mapping[str, Any]
) -> None:
    replay = Replay(config, healthy=case.get("nodes_initially_healthy", True))
    places: dict[str, tuple[str, list[int]]] = {}
    comparing = True
    for event in case["events"]:
        outcome = replay.apply(event)
        check(replay.engine)
        assert outcome["kind"] != "platform_error"
        if event["op"] == "schedule" and outcome["kind"] == "bind":
            places[event["pod"]] = (outcome["node"], outcome["leafCellIsolation"])
        if comparing:
            comparing = _compare(event, outcome)
        if comparing and event["op"] == "assert":
            _compare_state(event.get("expect") or {}, replay, places)


def _compare(event: Mapping[str, Any], outcome: Mapping[str, Any]) -> bool:
    """Compare one outcome; False when the trace has legally taken another course."""
    expect = {**(event.get("observed") or {}), **(event.get("expect") or {})}
    kind = expect.get("kind")
    if kind is None:
        return True
    if (kind, outcome["kind"]) in {("wait", "bind"), ("preempt", "bind")}:
        return False
    assert outcome["kind"] == kind or (kind == "not_bind" and outcome["kind"] != "bind"), outcome
    if event.get("expect"):
        _compare_details(event["expect"], outcome)
    observed = event.get("observed") or {}
    if kind == "bind":
        return all(
            outcome[k] == observed[k] for k in ("node", "leafCellIsolation") if k in observed
        )
    if kind == "preempt" and "victims" in observed:
        return set(outcome["victims"]) == set(observed["victims"])
    return True


def _compare_details(expect: Mapping[str, Any], outcome: Mapping[str, Any]) -> None:
    assert set(expect) <= OUTCOME_KEYS
    if "node" in expect:
        assert outcome["node"] == expect["node"]
    if "leafCellIsolation" in expect:
        assert outcome["leafCellIsolation"] == expect["leafCellIsolation"]
    if "node_one_of" in expect and outcome["kind"] == "bind":
        assert outcome["node"] in expect["node_one_of"]
    if "reason_contains" in expect:
        assert expect["reason_contains"] in outcome["reason"]
    if "message_contains" in expect:
        assert expect["message_contains"] in outcome["message"]
    if "code" in expect:
        assert outcome["code"] == expect["code"]
    if "victims_subset_of" in expect:
        assert set(outcome["victims"]) <= set(expect["victims_subset_of"])


def _compare_state(
    expect: Mapping[str, Any], replay: Replay, places: Mapping[str, tuple[str, list[int]]]
) -> None:
    assert set(expect) <= STATE_KEYS
    groups = replay.group_states()
    _compare_places(expect, places)
    for name in expect.get("groups_absent", []):
        assert name not in groups
    for name, state in expect.get("groups_state", {}).items():
        assert groups[name]["state"] == state
    for name in expect.get("groups_lazy_preempted", []):
        assert groups[name]["lazy_preempted"]
    for name in expect.get("groups_not_lazy_preempted", []):
        assert not groups[name]["lazy_preempted"]


def _compare_places(
    expect: Mapping[str, Any], places: Mapping[str, tuple[str, list[int]]]
) -> None:
    if "leaf_cells" in expect:
        assert expect["leaf_cells"]["all_free"] is True
        assert not {node for node, _ in places.values()} & set(expect["leaf_cells"]["nodes"])
    if "same_node_of_pods" in expect:
        assert len({places[pod][0] for pod in expect["same_node_of_pods"]}) == 1
    if "distinct_nodes_of_pods" in expect:
        pods = expect["distinct_nodes_of_pods"]
        assert len({places[pod][0] for pod in pods}) == len(pods)
    if "min_distinct_nodes" in expect:
        rule = expect["min_distinct_nodes"]
        assert len({places[pod][0] for pod in rule["pods"]}) >= rule["n"]
    if "buddy_pair" in expect:
        rule = expect["buddy_pair"]
        devices = sorted(d for pod in rule["pods"] for d in places[pod][1])
        assert devices in [sorted(pair) for pair in rule["pairs"]]
    if "node_sets" in expect:
        nodes = {places[pod][0] for pod in expect["pods"]}
        assert all(nodes & set(some) for some in expect["node_sets"]["must_include_any_of"])


@pytest.mark.skipif(not CASES.is_dir(), reason=f"no recorded cases at {CASES}")
def test_the_incomplete_search_of_the_reference_is_complete_here() -> None:
    document = json.loads((CASES / "limits.json").read_text(encoding="utf-8"))
    case = next(c for c in document["cases"] if c["id"] == "limit-greedy-gang-incomplete")
    replay = Replay(case["config"])

    outcomes = [replay.apply(event) for event in case["events"]]
    second = replay.apply({**case["events"][-1], "pod": "g2", "spec": _sized(case, 3)})
    third = replay.apply({**case["events"][-1], "pod": "g3", "spec": _sized(case, 3)})

    assert [o["kind"] for o in (outcomes[-1], second, third)] == ["bind"] * 3
    assert {second["node"], third["node"]} == {"n00", "n01"}
    check(replay.engine)


def _sized(case: Mapping[str, Any], size: int) -> dict[str, Any]:
    return {**case["events"][-1]["spec"], "leafCellNumber": size}


@pytest.mark.skipif(not CASES.is_dir(), reason=f"no recorded cases at {CASES}")
def test_splits_merge_back_as_recorded() -> None:
    document = json.loads((CASES / "limits.json").read_text(encoding="utf-8"))
    case = next(c for c in document["cases"] if c["id"] == "buddy-split-merge")
    replay = Replay(case["config"])
    for event in case["events"]:
        replay.apply(event)
        state = (event.get("observed") or {}).get("state")
        if not state:
            continue
        ledger = replay.engine.rosters["RACK"].ledger
        for level in range(1, 6):
            cells = [ledger.topology.address[c] for c in ledger.buddy.free_cells(level)]
            assert cells == state["free_cells"]["RACK"][str(level)]
            assert ledger.buddy.total_left[level] == state["total_left"]["RACK"][str(level)]
            assert ledger.buddy.claimed[level] == state["all_vc_free"]["RACK"][str(level)]


def test_a_refused_configuration_is_one_line() -> None:
    lines = list(replay_case({"id": "x", "events": [{"op": "assert"}]}, {"physicalCluster": 3}))

    assert [(line["index"], line["op"]) for line in lines] == [(-1, "init")]
    assert lines[0]["outcome"]["kind"] == "platform_error"
