"""``tessera node label``: sets labels of several nodes and retains the others."""

from typing import Any

from tests.support.prepared_portal import CommandLine, Portal

NODE: dict[str, Any] = {
    "id": 4,
    "name": "gpu-1",
    "state": "ready",
    "labels": {"zone": "b", "rack": "x"},
}


def test_labels_are_set_and_removed(tessera: CommandLine, portal: Portal) -> None:
    portal.answer("GET", "nodes/", {"results": [NODE], "next_cursor": None})
    portal.answer("GET", "nodes/4/", NODE)
    portal.answer("PATCH", "nodes/4/", NODE)

    ran = tessera("node", "label", "gpu-1", "rack=r1", "zone=")

    assert (ran.status, ran.out.strip()) == (0, "gpu-1: rack=r1")
    assert [asked.json for asked in portal.asked if asked.json] == [{"labels": {"rack": "r1"}}]


def test_a_label_needs_a_node_and_a_value(tessera: CommandLine, portal: Portal) -> None:
    assert tessera("node", "label", "rack=r1").status != 0
    assert tessera("node", "label", "gpu-1").status != 0
    assert portal.asked == []
