"""Gangs that fit only if the healthy cells of a damaged chain go to the right quotas."""

from typing import Any

import pytest

from scheduling.core.cells.replay import Replay
from tests.support.cell_invariants import check

Cells = tuple[tuple[str, int], ...]


def _config(devices: int, racks: tuple[tuple[str, ...], ...], quotas: Cells) -> dict[str, Any]:
    return {
        "physicalCluster": {
            "cellTypes": {
                "node": {"childCellType": "A", "childCellNumber": devices, "isNodeLevel": True},
                "rack": {"childCellType": "node", "childCellNumber": len(racks[0])},
            },
            "physicalCells": [
                {"cellType": "rack", "cellChildren": [{"cellAddress": node} for node in nodes]}
                for nodes in racks
            ],
        },
        "virtualClusters": {
            "v1": {"virtualCells": [{"cellType": kind, "cellNumber": n} for kind, n in quotas]}
        },
    }


def _submit(replay: Replay, name: str, sizes: tuple[int, ...], suggested: Any = "ALL") -> str:
    members = [{"podNumber": sizes.count(n), "leafCellNumber": n} for n in sorted(set(sizes))]
    for number, size in enumerate(sizes):
        spec = {
            "virtualCluster": "v1",
            "priority": 0,
            "leafCellType": "A",
            "leafCellNumber": size,
            "ignoreK8sSuggestedNodes": False,
            "affinityGroup": {"name": name, "members": members},
        }
        event = {"pod": f"{name}-{number}", "suggested_nodes": suggested, "spec": spec}
        outcome = replay.apply({"op": "schedule", "phase": "Preempting", "commit": True, **event})
        if outcome["kind"] != "bind":
            break
    check(replay.engine)
    return str(outcome["kind"])


RACKS = (("n0", "n1"), ("n2", "n3"))
WHOLE_AND_PART: Cells = (("rack", 1), ("rack.node", 1), ("rack.node.A", 1))
NODE_AND_DEVICES: Cells = (("rack.node", 1), ("rack.node.A", 2))


@pytest.mark.parametrize("suggests", [False, True])
@pytest.mark.parametrize("bad", ["n0", "n1", "n2", "n3"])
def test_a_small_quota_leaves_the_healthy_rack_to_the_rack_quota(bad: str, suggests: bool) -> None:
    replay = Replay(_config(3, RACKS, WHOLE_AND_PART))
    others: Any = "ALL"
    if suggests:
        others = [node for node in ("n0", "n1", "n2", "n3") if node != bad]
    else:
        replay.apply({"op": "bad_node", "node": bad})

    assert _submit(replay, "one-too-many", (3, 3, 3, 1), others) == "wait"
    assert _submit(replay, "mixed", (3, 3, 2), others) == "bind"
    for number in range(3):
        replay.apply({"op": "delete", "pod": f"mixed-{number}"})
    assert _submit(replay, "equal", (2, 2, 2), others) == "bind"


def test_single_devices_use_the_node_quota_on_the_only_healthy_node() -> None:
    replay = Replay(_config(4, (("n0",), ("n1",)), NODE_AND_DEVICES))
    replay.apply({"op": "bad_node", "node": "n0"})

    assert _submit(replay, "three", (1, 1, 1)) == "bind"


def test_the_search_for_a_large_gang_is_limited() -> None:
    nodes = tuple(f"n{i}" for i in range(8))
    racks = tuple(tuple(f"{node}-{r}" for node in nodes) for r in range(16))
    replay = Replay(_config(8, racks, (("rack", 12), ("rack.node", 24), ("rack.node.A", 16))))
    for rack in range(16):
        replay.apply({"op": "bad_node", "node": f"n{rack % 8}-{rack}"})

    assert _submit(replay, "all", (5,) * 113) == "wait"
    assert _submit(replay, "most", (5,) * 100) == "bind"
