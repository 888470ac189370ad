"""``tessera sharing``: totals, the switch of the cluster, limits of a node, and who shares."""

from typing import Any

import pytest

from tests.support.prepared_portal import CommandLine, Portal

STATUS: dict[str, Any] = {
    "sharing": True, "devices": 2, "guests": {"open": 2, "frozen": 1}, "loss_p95": 0.031,
    "limit": 0.05, "over_limit": 1, "delay_seconds": 12.4,
}  # fmt: skip
GUEST: dict[str, Any] = {
    "slot": 1, "tenant": "another tenant", "job_id": None, "name": "", "mode": "slot",
    "memory_limit": "enforced", "compute_limit": "enforced", "open": 0.5, "state": "open",
}  # fmt: skip
NODE: dict[str, Any] = {
    "node_id": 4,
    "enabled": True,
    "guests_allowed": "same-tenant",
    "devices": [
        {
            "index": 0,
            "device_type": "A100",
            "guests_allowed": "any",
            "modes": [{"mode": "slot", "memory_limit": "enforced", "compute_limit": "enforced"}],
            "guests": [GUEST, {**GUEST, "job_id": 7, "name": "eval", "open": None, "state": ""}],
        }
    ],
    "changes": [],
}


@pytest.mark.parametrize("command", [("sharing",), ("sharing", "status")])
def test_the_totals_name_guests_by_state_and_the_loss(
    tessera: CommandLine, portal: Portal, command: tuple[str, ...]
) -> None:
    portal.answer("GET", "cluster/sharing/", STATUS)

    ran = tessera(*command)

    assert ran.status == 0
    for part in ("1 frozen, 2 open", "3.1 %", "1 holders in the last 24 h", "12 s"):
        assert part in ran.out, part


def test_the_switch_of_the_cluster_is_sent(tessera: CommandLine, portal: Portal) -> None:
    portal.answer("PATCH", "cluster/rules/", {"sharing": False})

    ran = tessera("sharing", "off")

    assert ran.out.strip() == "Device sharing is off."
    assert [asked.json for asked in portal.asked] == [{"sharing": False}]


def test_a_limit_of_a_device_is_sent_and_guests_of_others_are_not_named(
    tessera: CommandLine, portal: Portal
) -> None:
    portal.answer("GET", "nodes/", {"results": [{"id": 4, "name": "gpu-1"}], "next_cursor": None})
    portal.answer("POST", "nodes/4/sharing/limit/", NODE)

    ran = tessera("sharing", "limit", "gpu-1", "same-tenant", "--device", "0")

    assert portal.asked[-1].json == {"guests": "same-tenant", "device": 0}
    assert "guests allowed on this node: same-tenant" in ran.out
    assert "another tenant (open 50.0 %, open)" in " ".join(ran.out.split())
    assert "7 eval (unknown)" in " ".join(ran.out.split())
