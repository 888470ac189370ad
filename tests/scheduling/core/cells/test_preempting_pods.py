"""Pods of a Preempting gang: its claims last until the last of them is deleted or starts."""

from typing import Any

import pytest

from scheduling.core.cells.replay import Replay

CONFIG = {
    "physicalCluster": {
        "cellTypes": {"node": {"childCellType": "gpu", "childCellNumber": 2, "isNodeLevel": True}},
        "physicalCells": [{"cellType": "node", "cellAddress": "n0"}],
    },
    "virtualClusters": {"vision": {"virtualCells": [{"cellType": "node", "cellNumber": 1}]}},
}


def _send(
    replay: Replay, pod: str, priority: int, size: int, *, phase: str = "Preempting", **more: Any
) -> str:
    group = {"name": pod[0], "members": [{"podNumber": 2 // size, "leafCellNumber": size}]}
    spec = {
        "virtualCluster": "vision",
        "priority": priority,
        "leafCellNumber": size,
        "affinityGroup": group,
    }
    event = {"op": "schedule", "pod": pod, "phase": phase, "commit": True, "spec": spec, **more}
    return str(replay.apply(event)["kind"])


def _delete(replay: Replay, pod: str) -> dict[str, str]:
    replay.apply({"op": "delete", "pod": pod})
    return {name: str(state["state"]) for name, state in replay.group_states().items()}


@pytest.fixture
def replay() -> Replay:
    replay = Replay(CONFIG)
    assert _send(replay, "low", 0, 2) == "bind"
    assert _send(replay, "high-0", 5, 1) == "preempt"
    return replay


def test_a_pod_in_the_filtering_phase_keeps_the_claims_of_its_gang(replay: Replay) -> None:
    assert _send(replay, "high-1", 5, 1, phase="Filtering") == "preempt"

    assert _delete(replay, "high-0") == {"l": "BeingPreempted", "h": "Preempting"}
    assert _delete(replay, "high-1") == {"l": "Allocated"}


def test_a_pod_with_an_uncommitted_bind_keeps_the_claims_of_its_gang(replay: Replay) -> None:
    assert _delete(replay, "low") == {"h": "Preempting"}
    assert _send(replay, "high-1", 5, 1, commit=False) == "bind"

    assert _delete(replay, "high-0") == {"h": "Preempting"}
    assert _delete(replay, "high-1") == {}


def test_pods_of_cancelled_claims_do_not_keep_later_claims(replay: Replay) -> None:
    assert _send(replay, "top", 9, 2) == "preempt"
    assert _delete(replay, "top") == {"l": "Allocated"}
    assert _send(replay, "high-1", 5, 1) == "preempt"

    assert _delete(replay, "high-1") == {"l": "Allocated"}
