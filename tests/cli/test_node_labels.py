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
    assert [asked.json for asked in portal.asked if asked.method == "PATCH"] == [
        {"labels": {"rack": "r1"}}
    ]


def test_a_label_needs_a_node_and_a_value(tessera: CommandLine, portal: Portal) -> None:
    assert tessera("node", "label", "rack=r1").status != 0
    assert tessera("node", "label", "gpu-1").status != 0
    assert portal.asked == []


def test_the_list_shows_all_types_of_a_node(tessera: CommandLine, portal: Portal) -> None:
    types = [{"type": "V100", "devices": 2}, {"type": "T400-display", "devices": 1}]
    node = {**NODE, "device_type": "V100", "types": types, "devices": 3}
    portal.answer("GET", "nodes/", {"results": [node], "next_cursor": None})

    listed = "".join(tessera("node", "list").out.split())

    assert "V100," in listed
    assert "T400" in listed
