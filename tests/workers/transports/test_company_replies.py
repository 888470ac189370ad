"""State of coordinators in the telemetry of a node: read, or taken as unknown."""

from typing import Any, Final

import pytest

from workers.transports.replies import read_telemetry

COMPANY: Final[dict[str, Any]] = {
    "number": 7,
    "holder_run_id": "0123456789abcdef.worker.0",
    "baseline": 0.2,
    "loss": 0.03,
    "loss_low": 0.02,
    "loss_high": 0.04,
    "open": 0.4,
    "account": -0.1,
    "reserve": None,
    "closings": 2,
    "delay_seconds": 1.5,
    "memory_free": 1 << 30,
    "guests": [
        {"run_id": "0123456789abcdee.worker.0", "duty": 0.3, "open": True, "memory": None,
         "pace": None, "spilled": 0, "frozen": True}
    ],
}  # fmt: skip


def company(**changes: object):
    device = {"index": 1, "company": {**COMPANY, **changes}}
    (found,) = read_telemetry({"telemetry": {"devices": [device]}}).devices
    return found.company


def test_the_state_of_a_coordinator_is_read_with_its_guests() -> None:
    found = company()

    assert (found.loss, found.account, found.closings) == (0.03, -0.1, 2)
    (guest,) = found.guests
    assert (guest.duty, guest.memory, guest.frozen) == (0.3, None, True)


def test_a_guest_that_is_reported_twice_counts_once() -> None:
    (guest,) = COMPANY["guests"]
    found = company(guests=[guest, {**guest, "frozen": False}])

    assert found is not None
    assert [one.frozen for one in found.guests] == [False]


@pytest.mark.parametrize(
    "change",
    [
        {"holder_run_id": 3},
        {"open": 2.0},
        {"closings": -1},
        {"closings": 1 << 31},  # more than the column holds
        {"delay_seconds": float("nan")},
        {"loss": float("inf")},
        {"memory_free": "all"},
        {"guests": [{}] * 4},
        {"guests": {}},
    ],
)
def test_a_state_that_cannot_be_read_counts_as_unknown(change: dict[str, object]) -> None:
    assert company(**change) is None
