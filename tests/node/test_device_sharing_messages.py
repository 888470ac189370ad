"""Messages of device sharing: round trips and refusals."""

import pytest

from tessera.device_sharing import DeviceOrder, GuestOrder, GuestPlace
from tessera.protocol import ProtocolError, RunSpec

UID = "0123456789abcdef0123456789abcdef"
PLACE = {
    "device": 3,
    "holder_run_id": f"{UID}.worker.0",
    "slot": 1,
    "mode": "slot",
    "floor": 1 << 30,
    "most": 2 << 30,
    "leave_seconds": 5.0,
}


def _spec(**fields: object) -> RunSpec:
    return RunSpec.from_json(
        {
            "run_id": f"{UID}.main.0",
            "job_id": "1",
            "job_name": "bert",
            "attempt": UID,
            "role": "main",
            "rank": 0,
            "command": "python train.py",
            "devices": [3],
            **fields,
        }
    )


def test_a_spec_keeps_the_place_of_a_guest() -> None:
    spec = _spec(beside=[PLACE])

    assert RunSpec.from_json(spec.to_json()) == spec
    assert spec.beside == [GuestPlace.from_json(PLACE)]


def test_a_spec_without_a_place_has_no_field_that_older_nodes_do_not_know() -> None:
    assert "beside" not in _spec().to_json()


@pytest.mark.parametrize(
    "change",
    [
        {"slot": 0},
        {"slot": 4},
        {"mode": "half"},
        {"floor": 0},
        {"holder_run_id": "../../etc"},
        {"device": 2},
        {"more": 1},
    ],
)
def test_a_place_that_is_not_valid_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ProtocolError):
        _spec(beside=[{**PLACE, **change}])


def test_orders_are_read_as_they_were_written() -> None:
    guest = GuestOrder(run_id=f"{UID}.main.0", slot=2, floor=1, most=2)
    order = DeviceOrder(device=3, slowdown=0.05, guests=[guest], drain=True)

    assert DeviceOrder.from_json(order.to_json()) == order


def test_an_order_with_two_guests_in_one_slot_is_refused() -> None:
    guest = {"run_id": f"{UID}.main.0", "slot": 1, "floor": 1, "most": 1}

    with pytest.raises(ProtocolError, match="different slots"):
        DeviceOrder.from_json({"device": 0, "slowdown": 0.05, "guests": [guest, guest]})
