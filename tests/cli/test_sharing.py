"""``tessera sharing``: totals, the switch of the cluster, limits of a node, and who shares."""

from typing import Any

import pytest

from tests.support.prepared_portal import CommandLine, Portal

STATUS: dict[str, Any] = {
    "sharing": True, "devices": 2, "guests": {"open": 2, "frozen": 1}, "loss_p95": 0.031,
    "peers": {"suspended": 1}, "suspended": {"T1": 1}, "pair_loss_p95": 0.31,
    "limit": 0.05, "over_limit": 1, "delay_seconds": 12.4,
}  # fmt: skip
GUEST: dict[str, Any] = {
    "slot": 1, "tenant": "another tenant", "job_id": None, "name": "", "mode": "slot",
    "memory_limit": "enforced", "compute_limit": "enforced", "open": 0.5, "state": "open",
    "is_peer": False, "turn_seconds": 0.0, "tier": "", "holder_tier": "",
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
    for part in (
        "1 frozen, 2 open",
        "3.1 %",
        "1 holders in the last 24 h",
        "12 s",
        "31.0 %",
        "1 suspended",
        "1 T1",
    ):
        assert part in ran.out, part


def test_a_job_in_turns_shows_who_is_suspended_and_since_when(
    tessera: CommandLine, portal: Portal
) -> None:
    other = {
        "job_id": 8, "name": "eval", "slot": 1, "leaving": False, "memory": None, "most": 4,
        "duty": None, "frozen": True, "role": "peer", "tier": "T1",
        "suspended_since": "2026-11-28T10:00:00Z",
    }  # fmt: skip
    device = {
        "node": "gpu-1", "index": 3, "device_type": "A100", "mode": "slot", "limit": 0.5,
        "memory_limit": "enforced", "compute_limit": "enforced", "others": [other],
        "at": "2026-11-28T10:00:30Z", "loss": None, "loss_low": None, "loss_high": None,
        "open": 1.0, "turn_seconds": 60.0, "tier": "", "suspended_since": None,
    }  # fmt: skip
    found = {
        "job_id": 7, "role": "holder", "guests": "same-tenant", "slowdown_percent": 5,
        "enabled": True, "stopped_at": None, "devices": [device], "suspensions": 3,
        "suspended_seconds": 180.0,
    }  # fmt: skip
    portal.answer("GET", "jobs/7/sharing/", found)

    ran = tessera("sharing", "job", "7")

    text = " ".join(ran.out.split())
    assert "limit 50%" in text
    assert "turns of 60 s; this job works now; suspended 3 times, 180 s" in text
    assert "suspended (T1)" in text


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
