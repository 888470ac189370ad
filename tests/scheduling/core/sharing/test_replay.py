"""The recorded cases of device sharing, and documents of cases that are not valid."""

import json
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from scheduling.core.sharing.replay import CaseError, replay

STEPS = [{"seconds": 0.02, "gate": "closed"}, {"seconds": 0.03, "gate": "open"}]
CASES: dict[str, dict[str, Any]] = {
    "accounts": {"name": "a", "bound": 0.05, "steps": STEPS},
    "memory": {
        "name": "m",
        "device": 24 << 30,
        "contexts": 1 << 30,
        "holder_peaks": [4 << 30],
        "holder_is_stable": True,
        "guest_floor": 1 << 30,
        "guest_bound_before": 2 << 30,
    },
    "charges": {"name": "c", "leaf_memory": 8, "parts": [{"vc": "a", "memory": 4}]},
    "plants": {
        "name": "p",
        "kernels": 4,
        "kernel_seconds": 0.005,
        "gap_seconds": 0.02,
        "guest_kernel_seconds": 0.002,
        "turn": None,
        "bound": 0.05,
        "seconds": 8,
        "device": "processor sharing",
        "noise": 0.03,
    },
}


def lines(kind: str, *cases: dict[str, Any], seeds: tuple[int, ...] = (1,)) -> list[Any]:
    return list(replay(kind, {"version": 1, "cases": list(cases)}, seeds))


def recorded(shared_dir: Path, kind: str) -> list[dict[str, Any]]:
    path = shared_dir / "cases" / "sharing" / f"{kind}.json"
    if not path.is_file():
        pytest.skip(f"no recorded cases at {path}; set TESSERA_SHARED")
    return json.loads(path.read_text(encoding="utf-8"))["cases"]


def test_recorded_accounts(shared_dir) -> None:
    for case in recorded(shared_dir, "accounts"):
        found = lines("accounts", case)
        for line, expected in zip(found, case["expect"], strict=True):
            assert line["baseline"] == pytest.approx(expected["baseline"], abs=1e-6), line
            assert line["account"] == pytest.approx(expected["account"], abs=1e-6), line
            assert line["closed"] is expected["closed"], line


def test_recorded_memory(shared_dir) -> None:
    for case in recorded(shared_dir, "memory"):
        (line,) = lines("memory", case)
        expected = case["expect"]
        assert line["guest_bound"] == expected["guest_bound"], line
        assert line["action"] == expected["action"], line


def test_recorded_charges(shared_dir) -> None:
    for case in recorded(shared_dir, "charges"):
        assert lines("charges", case) == [{"case": case["name"], **case["expect"]}]


def test_recorded_plants(shared_dir) -> None:
    for case in recorded(shared_dir, "plants"):
        columns = defaultdict(list)
        for line in lines("plants", case, seeds=(1, 2)):
            for field, value in line.items():
                columns[field].append(value)
        limits = case["expect"]
        assert mean(columns["loss_after_5s"]) <= limits["loss_after_5s_at_most"]
        assert (
            mean(columns["worst_loss_of_10s_after_5s"])
            <= limits["loss_of_any_10s_after_5s_at_most"]
        )
        assert min(columns["guest_share_of_device"]) >= limits["guest_share_of_device_at_least"]
        assert (
            max(columns["seconds_until_in_bounds_after_turn"])
            <= limits["seconds_until_in_bounds_after_turn_at_most"]
        )


@pytest.mark.parametrize("kind", CASES)
def test_expected_outcomes_are_not_read(kind) -> None:
    case = CASES[kind]

    assert lines(kind, {**case, "expect": object(), "note": 3}) == lines(kind, case)


def test_lines_have_the_fields_of_their_kind() -> None:
    assert [list(line) for line in lines("accounts", CASES["accounts"])] == [
        ["case", "index", "baseline", "account", "closed"]
    ] * 2
    assert lines("memory", CASES["memory"]) == [
        {
            "case": "m",
            "holder_bound": 105 * (4 << 30) // 100,
            "guest_bound": (24 << 30) - 3 * (24 << 30) // 100 - (1 << 30) - 105 * (4 << 30) // 100,
            "action": "keep",
        }
    ]
    assert lines("charges", CASES["charges"]) == [{"case": "c", "leaves": {"a": 1}, "fits": True}]
    assert [list(line) for line in lines("plants", CASES["plants"], seeds=(3, 4))] == [
        [
            "case",
            "seed",
            "loss_after_5s",
            "worst_loss_of_10s_after_5s",
            "guest_share_of_device",
            "seconds_until_in_bounds_after_turn",
        ]
    ] * 2


def test_a_step_after_a_move_of_the_gate_settles() -> None:
    steps = [{"seconds": 0.02, "gate": "closed"}] * 2
    steps += [{"seconds": 0.03, "gate": "open"}, {"seconds": 0.03, "gate": "closed"}]

    found = lines("accounts", {"name": "a", "bound": 0.05, "steps": steps})

    assert [line["baseline"] for line in found] == [0.02] * 4
    assert [line["closed"] for line in found] == [False, False, True, True]


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("accounts", {"steps": [{"seconds": 0.02, "gate": "settling"}]}, "not open or closed"),
        ("accounts", {"steps": [{"seconds": 0.0, "gate": "open"}]}, "not positive"),
        ("accounts", {"steps": [{"seconds": True, "gate": "open"}]}, "not a number"),
        ("accounts", {"steps": [3]}, "case 'a'"),
        ("memory", {"device": 1.5}, "not a whole number"),
        ("charges", {"parts": [{"memory": 4}]}, "field 'vc' is missing"),
        ("charges", {"parts": [{"vc": "a", "memory": 0}]}, "not positive"),
        ("charges", {"parts": [{"vc": "a", "memory": -4}]}, "memory: -4 is negative"),
        ("memory", {"holder_peaks": [4, -4]}, "holder_peaks: -4 is negative"),
        ("accounts", {"bound": 0}, "bound: 0 is not positive"),
        ("accounts", {"bound": 1.5}, "bound: 1.5 is not between 0 and 1"),
        ("accounts", {"steps": [{"seconds": 1e308, "gate": "closed"}] * 2}, "not a number"),
        ("accounts", {"steps": [{"seconds": 10**400, "gate": "closed"}]}, "not a number"),
        ("plants", {"device": "magic"}, "magic"),
        ("plants", {"turn": {"at": 3, "gaps": 0}}, "unknown fields gaps"),
        ("plants", {"kernels": 0}, "must be positive"),
    ],
)
def test_a_case_that_is_not_valid_names_case_and_field(kind, change, message) -> None:
    with pytest.raises(CaseError, match=message):
        lines(kind, {**CASES[kind], **change})


@pytest.mark.parametrize("document", [[], {}, {"version": 2, "cases": []}, {"version": 1}, 3])
def test_a_document_needs_version_and_cases(document) -> None:
    with pytest.raises(CaseError, match=r"version 1|list of mappings"):
        list(replay("memory", document))


@pytest.mark.parametrize("device", ["first come", "First-come, first-served"])
def test_devices_may_serve_the_first_kernel_first(device) -> None:
    first_come = lines("plants", {**CASES["plants"], "device": device})

    assert first_come != lines("plants", CASES["plants"])
