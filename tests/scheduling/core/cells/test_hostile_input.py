"""No configuration, request or replay event, however malformed, ends in an unhandled error."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduling.core.cells import (
    CellEngine,
    CellError,
    ClusterSpec,
    GangRequest,
    InfeasibleSpecError,
    Member,
    Placed,
    RequestError,
    SpecError,
    feasible,
)
from scheduling.core.cells.hived import spec_from_hived
from scheduling.core.cells.replay import Replay, replay_document
from scheduling.core.cells.requests import MAX_INSTANCES
from tests.strategies.cells import NODES, SPECS
from tests.support.cell_cases import CONFIGS, events_of
from tests.support.cell_invariants import check, snapshot

SCALARS = st.none() | st.booleans() | st.integers(-3, 9) | st.floats() | st.text(max_size=4)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
)
HIVED: dict[str, Any] = {
    "physicalCluster": {
        "cellTypes": {
            "pair": {"childCellType": "gpu", "childCellNumber": 2},
            "node": {"childCellType": "pair", "childCellNumber": 2, "isNodeLevel": True},
        },
        "physicalCells": [
            {"cellType": "node", "cellAddress": "n0"},
            {"cellType": "node", "cellAddress": "n1", "pinnedCellId": "lab"},
        ],
    },
    "virtualClusters": {
        "vision": {
            "virtualCells": [{"cellType": "node", "cellNumber": 1}],
            "pinnedCells": [{"pinnedCellId": "lab"}],
        }
    },
}
SPEC = {
    "virtualCluster": "vision",
    "priority": 1,
    "leafCellType": "gpu",
    "leafCellNumber": 1,
    "affinityGroup": {"name": "g", "members": [{"podNumber": 1, "leafCellNumber": 1}]},
}
KINDS = {"bind", "preempt", "wait", "error", "platform_error", "ok"}
QUIET = settings(deadline=None, suppress_health_check=list(HealthCheck))


def _paths(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(document, dict):
        for key, value in document.items():
            found += _paths(value, (*path, key))
    elif isinstance(document, list):
        for i, value in enumerate(document):
            found += _paths(value, (*path, i))
    return found


def _spoiled(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    copy = json.loads(json.dumps(document))
    at = copy
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return copy


@QUIET
@given(data=st.data())
def test_a_spoiled_configuration_is_refused_by_name_or_works(data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(_paths(HIVED)))
    document = _spoiled(HIVED, path, data.draw(JSON))

    problem = None
    try:
        spec = spec_from_hived(document)
        engine = CellEngine(spec)
    except CellError as error:
        problem = error

    if problem is not None:
        assert str(problem)
        assert problem.field
    else:
        check(engine)
        assert ClusterSpec.from_json(json.loads(spec.canonical())).canonical() == spec.canonical()


@QUIET
@given(document=JSON)
def test_any_document_is_refused_or_read(document: Any) -> None:
    for read in (spec_from_hived, ClusterSpec.from_json):
        problem = None
        try:
            read(document)
        except SpecError as error:
            problem = error
        assert problem is None or problem.field


@QUIET
@given(data=st.data())
def test_a_spoiled_pod_is_refused_and_changes_nothing(data: st.DataObject) -> None:
    replay = Replay(HIVED)
    path = data.draw(st.sampled_from(_paths(SPEC)))
    event = {
        "op": "schedule",
        "pod": "p",
        "phase": "Preempting",
        "suggested_nodes": "ALL",
        "spec": _spoiled(SPEC, path, data.draw(JSON)),
        "commit": True,
    }
    before = snapshot(replay.engine)

    outcome = replay.apply(event)

    assert outcome["kind"] in {"bind", "wait", "error"}
    if outcome["kind"] == "error":
        assert outcome["code"] == 400
        assert snapshot(replay.engine) == before
    check(replay.engine)


@QUIET
@given(
    members=st.lists(
        st.builds(
            Member,
            count=st.integers(-1, 4),
            leaf_count=st.integers(-1, 20),
            within_level=st.sampled_from([None, "A", "A-node", "nowhere"]),
        ),
        max_size=3,
    ),
    vc=st.sampled_from(["v1", "v2", "", "nobody"]),
    priority=st.integers(-3, 1002),
    types=st.sampled_from([(), ("A",), ("B",), ("C",), ("A", "C")]),
    pinned=st.sampled_from([None, "lab"]),
)
def test_requests_are_refused_by_name_or_answered(
    members: list[Member], vc: str, priority: int, types: tuple[str, ...], pinned: str | None
) -> None:
    engine = CellEngine(NODES)
    before = snapshot(engine)
    problem = None
    try:
        request = GangRequest(
            group="g",
            vc=vc,
            priority=priority,
            members=tuple(members),
            leaf_types=types,
            pinned=pinned,
        )
        engine.schedule(request)
    except RequestError as error:
        problem = error

    assert problem is None or problem.field
    assert snapshot(engine) == before


@QUIET
@given(
    leaves=st.lists(st.sampled_from(["0", "3/6/a0/0/0", "3/6/a0/0/1", "", "x/y"]), max_size=4),
    virtual=st.lists(
        st.sampled_from(["v1/0/0/0", "v1/9", "v1", "", "v2/0/0/0/0/0/0/0"]), max_size=4
    ),
    devices=st.lists(st.integers(-1, 5), max_size=4),
)
def test_leases_of_any_shape_can_be_restored(
    leaves: list[str], virtual: list[str], devices: list[int]
) -> None:
    engine = CellEngine(NODES)
    placed = Placed(
        member=0,
        node="a0",
        devices=tuple(devices),
        leaves=tuple(leaves),
        virtual=tuple(virtual),
        chain="A-pod",
    )
    request = GangRequest(group="g", vc="v1", members=(Member(count=1, leaf_count=2),))

    engine.restore(request, [placed])

    check(engine)


@pytest.mark.parametrize("name", sorted(SPECS))
def test_a_specification_survives_its_own_json(name: str) -> None:
    spec = SPECS[name]

    again = ClusterSpec.from_json(json.loads(spec.canonical()))

    assert again == spec
    assert feasible(again).ok


def test_a_share_that_does_not_fit_has_a_witness() -> None:
    document = _spoiled(HIVED, ("virtualClusters", "vision", "virtualCells", 0, "cellNumber"), 2)

    answer = feasible(spec_from_hived(document))

    assert not answer.ok
    assert "at level node chain node needs 3, has 2" in answer.witness
    with pytest.raises(InfeasibleSpecError, match="needs 3, has 2"):
        CellEngine(spec_from_hived(document))


def test_pinned_cells_that_spoil_a_rack_have_a_witness() -> None:
    document: dict[str, Any] = json.loads(json.dumps(HIVED))
    cluster = document["physicalCluster"]
    cluster["cellTypes"]["rack"] = {"childCellType": "node", "childCellNumber": 2}
    cluster["physicalCells"] = [
        {"cellType": "rack", "cellChildren": [{"pinnedCellId": "one"}, {}]},
        {"cellType": "rack", "cellChildren": [{"pinnedCellId": "two"}, {}]},
    ]
    document["virtualClusters"] = {
        "vision": {
            "virtualCells": [{"cellType": "rack", "cellNumber": 1}],
            "pinnedCells": [{"pinnedCellId": "one"}, {"pinnedCellId": "two"}],
        }
    }

    answer = feasible(spec_from_hived(document))

    assert not answer.ok
    assert "in addition to the pinned cells" in answer.witness


@QUIET
@given(seed=st.integers(0, 2**32), data=st.data())
def test_a_spoiled_document_of_cases_is_refused_or_replayed(
    seed: int, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(CONFIGS)))
    events = events_of(CONFIGS[name], "priorities", seed, 6)
    document: Any = {
        "configs": {"c": CONFIGS[name]},
        "cases": [{"id": "a", "config_name": "c", "events": events}],
    }
    path = data.draw(st.sampled_from(_paths(document)))
    document = _spoiled(document, path, data.draw(JSON))

    problem, lines = None, []
    try:
        lines = list(replay_document(document))
    except CellError as error:
        problem = error

    assert problem is None or problem.field
    assert all(json.dumps(line) for line in lines)
    assert {line["outcome"]["kind"] for line in lines} <= KINDS


@QUIET
@given(event=JSON)
def test_any_event_is_answered_and_a_refused_one_changes_nothing(event: Any) -> None:
    replay = Replay(HIVED)
    before = snapshot(replay.engine)

    outcome = replay.apply(event)

    assert outcome["kind"] in KINDS
    assert snapshot(replay.engine) == before


def test_a_case_without_events_or_configuration_gives_no_crash() -> None:
    document = {"cases": [{"id": "a"}, {"id": "b", "config": HIVED}]}

    lines = list(replay_document(document))

    assert [line["case"] for line in lines if line["index"] == -1] in ([], ["a"])


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ((Member(count=0, leaf_count=1),), "members[0].count"),
        ((Member(count=1, leaf_count=1), Member(count=-1, leaf_count=1)), "members[1].count"),
        ((Member(count=1, leaf_count=0),), "members[0].leaf_count"),
        ((Member(count=MAX_INSTANCES + 1, leaf_count=1),), "members"),
    ],
)
def test_requests_that_no_cluster_can_serve_are_rejected(
    members: tuple[Member, ...], field: str
) -> None:
    with pytest.raises(RequestError) as refused:
        GangRequest(group="gang", vc="vision", members=members)

    assert refused.value.field == field


def test_the_largest_gang_is_accepted() -> None:
    GangRequest(group="gang", vc="vision", members=(Member(count=MAX_INSTANCES, leaf_count=1),))
