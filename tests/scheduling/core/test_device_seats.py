"""Devices keep their leaves by identity: an event of one device changes no other."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.device_seats import DeviceSeat, Seated, seat_devices, without_shared_uuids
from tessera.inventory import Device

SOCKETS = 2


def address(place: int) -> str:
    return f"0000:{place:02x}:00.0"


def gpu(place: int, name: str, index: int = 0, model: str = "A100") -> Device:
    """A GPU in one of eight slots of the machine, four of each socket."""
    return Device(
        index=index, type=model, path=[place // 4], uuid=f"GPU-{name}", pci_address=address(place)
    )


def reported(board: dict[int, str]) -> list[Device]:
    """The GPUs by slot of the machine, in the order of the driver."""
    return [gpu(place, board[place], index) for index, place in enumerate(sorted(board))]


def seats_of(board: dict[int, str], held: frozenset[int] = frozenset()) -> list[DeviceSeat]:
    return [
        DeviceSeat(
            number=place,
            cells=(str(place // 4),),
            uuid=f"GPU-{name}",
            pci_address=address(place),
            model="A100",
            is_held=place in held,
        )
        for place, name in sorted(board.items())
    ]


FULL = {place: chr(ord("a") + place) for place in range(8)}


def numbers(seated: Seated, devices: list[Device]) -> dict[str, int | None]:
    return {d.uuid[4:]: n for d, n in zip(devices, seated.numbers, strict=True)}


def test_a_gpu_that_disappears_shifts_no_other() -> None:
    devices = reported({place: name for place, name in FULL.items() if place != 3})

    seated = seat_devices(seats_of(FULL), devices)

    assert devices[3].index == 3
    assert numbers(seated, devices) == {name: p for p, name in FULL.items() if p != 3}
    assert (dict(seated.moved), seated.is_consistent) == ({}, True)


def test_a_board_in_the_place_of_another_takes_its_leaf() -> None:
    devices = reported({**FULL, 3: "new"})

    seated = seat_devices(seats_of(FULL), devices)

    assert numbers(seated, devices)["new"] == 3
    assert seated.moved == {}


def test_a_new_board_waits_while_a_job_holds_the_leaf() -> None:
    devices = reported({**FULL, 3: "new"})

    seated = seat_devices(seats_of(FULL, frozenset({3})), devices)

    assert numbers(seated, devices)["new"] is None
    assert numbers(seated, devices)["e"] == 4


def test_two_boards_that_change_sockets_change_their_leaves_alone() -> None:
    devices = reported({**FULL, 1: "g", 6: "b"})

    seated = seat_devices(seats_of(FULL), devices)

    assert dict(seated.moved) == {1: 6, 6: 1}
    assert seated.is_consistent


def test_boards_that_change_places_in_one_socket_keep_their_leaves() -> None:
    devices = reported({**FULL, 1: "c", 2: "b"})

    seated = seat_devices(seats_of(FULL), devices)

    assert (dict(seated.moved), seated.is_consistent) == ({}, True)
    assert numbers(seated, devices) == {name: place for place, name in FULL.items()}


def test_held_devices_do_not_change_their_leaves() -> None:
    devices = reported({**FULL, 1: "g", 6: "b"})

    seated = seat_devices(seats_of(FULL, frozenset({6})), devices)

    assert (dict(seated.moved), seated.is_consistent) == ({}, False)
    assert numbers(seated, devices) == {name: place for place, name in FULL.items()}


def test_a_board_that_moves_into_the_place_of_a_missing_one_exchanges_leaves_with_it() -> None:
    board = {place: name for place, name in FULL.items() if place not in {1, 6}} | {1: "g"}

    seated = seat_devices(seats_of(FULL), reported(board))

    assert dict(seated.moved) == {6: 1, 1: 6}


def test_addresses_that_the_machine_renumbers_move_nothing() -> None:
    devices = [
        replace(gpu(place, name, index), pci_address=address(index + 40))
        for index, (place, name) in enumerate((p, n) for p, n in FULL.items() if p != 2)
    ]

    seated = seat_devices(seats_of(FULL), devices)

    assert numbers(seated, devices) == {name: p for p, name in FULL.items() if p != 2}


def test_a_gpu_without_a_uuid_is_known_by_its_address() -> None:
    devices = [replace(d, uuid="") if d.index == 4 else d for d in reported(FULL)]

    seated = seat_devices(seats_of(FULL), devices[4:])

    assert seated.numbers == (4, 5, 6, 7)


def test_declared_slots_are_known_by_their_index() -> None:
    slots = [Device(index=i, type="cpu", path=[], declared=True) for i in (0, 2)]

    assert seat_devices([DeviceSeat(number=n) for n in range(3)], slots).numbers == (0, 2)


def test_leaves_of_an_import_get_the_devices_of_their_index() -> None:
    assert seat_devices([DeviceSeat(number=n) for n in range(8)], reported(FULL)).numbers == tuple(
        range(8)
    )


def test_another_model_in_a_place_gets_a_new_number() -> None:
    devices = [*reported(FULL)[:3], gpu(3, "x", 3, model="T4")]

    seated = seat_devices(seats_of(FULL), devices)

    assert numbers(seated, devices)["x"] == 8


def test_a_uuid_of_two_devices_identifies_none() -> None:
    devices = [gpu(0, "a", 0), gpu(1, "a", 1), gpu(2, "c", 2)]

    assert [d.uuid for d in without_shared_uuids(devices)] == ["", "", "GPU-c"]


class Machine:
    """A model of eight slots, their boards, and the control plane's knowledge of them."""

    def __init__(self) -> None:
        self.board = dict(FULL)
        self.seats = {seat.number: seat for seat in seats_of(FULL)}
        self.fresh = 0

    def apply(self, event: str, one: int, other: int) -> None:
        if event == "lose":
            self.board.pop(one, None)
        elif event == "add" and one not in self.board:
            self.fresh += 1
            self.board[one] = f"new{self.fresh}"
        elif event == "back" and one not in self.board:
            names = set(self.board.values())
            missing = [s.uuid[4:] for s in self.seats.values() if s.uuid[4:] not in names]
            if missing:
                self.board[one] = missing[other % len(missing)]
        elif event == "swap":
            pair = self.board.pop(one, None), self.board.pop(other, None)
            for place, name in ((other, pair[0]), (one, pair[1])):
                if name is not None:
                    self.board[place] = name
        elif event == "hold":
            seat = self.seats[one]
            self.seats[one] = replace(seat, is_held=not seat.is_held)

    def probe(self) -> tuple[Seated, list[Device]]:
        devices = reported(self.board)
        seated = seat_devices(list(self.seats.values()), devices)
        self.seats = {
            seated.moved.get(number, number): replace(
                seat, number=(to := seated.moved.get(number, number)), cells=(str(to // 4),)
            )
            for number, seat in self.seats.items()
        }
        for device, number in zip(devices, seated.numbers, strict=True):
            if number is not None:
                self.seats[number] = replace(
                    self.seats[number], uuid=device.uuid, pci_address=device.pci_address
                )
        return seated, devices


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["lose", "add", "back", "swap", "hold"]),
        st.integers(0, 7),
        st.integers(0, 7),
    ),
    max_size=25,
)


@given(EVENTS)
def test_any_events_keep_each_device_on_its_own_leaf(events: list[tuple[str, int, int]]) -> None:
    machine = Machine()
    for event in events:
        machine.apply(*event)
        before = {seat.uuid: seat for seat in machine.seats.values()}

        seated, devices = machine.probe()

        given_out = [number for number in seated.numbers if number is not None]
        assert len(given_out) == len(set(given_out))
        assert set(given_out) <= set(range(8))
        assert sorted(machine.seats) == list(range(8))
        for device, number in zip(devices, seated.numbers, strict=True):
            known = before.get(device.uuid)
            if known is not None:
                # A known device is on its leaf, or has moved to the leaf of its place.
                assert number == seated.moved.get(known.number, known.number)
            else:
                assert number is not None or any(seat.is_held for seat in before.values())
        for seat in before.values():
            if seat.is_held:
                assert machine.seats[seat.number].uuid == seat.uuid

        again, _ = machine.probe()
        assert again.numbers == tuple(number for number in seated.numbers), (
            "a second probe changes nothing"
        )
        assert again.moved == {}
