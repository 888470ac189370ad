"""Messages of device sharing: the place of a guest, and orders to the coordinator of a device.

Part of the bundle for nodes: Python 3.8, standard library only. The runner of the holder
coordinates the devices of its run; see ``docs/sharing.md``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import List

from tessera.wire import Fields, Json

EXCLUSIVE, MIG, MPS, LIMITED = "exclusive", "mig", "mps", "limited"
COOPERATIVE, TIME_SLICE, SLOT = "cooperative", "time-slice", "slot"
SHARING_MODES = (EXCLUSIVE, MIG, MPS, LIMITED, COOPERATIVE, TIME_SLICE, SLOT)
"""Ways to limit memory and compute of the jobs on one device."""

MAX_GUESTS = 3
"""Most guests of a device; guests have the slots 1 to 3."""
MAX_BYTES = 1 << 60


@dataclass(frozen=True)
class GuestPlace:
    """The place of a guest on a device of another run.

    Attributes:
        device: number of the device, one of the run's ``devices``.
        holder_run_id: the run that must hold the device when the guest starts.
        slot: 1 to 3.
        mode: the sharing mode under which the guest was placed, one of ``SHARING_MODES``.
        floor: minimum bytes of device memory with which the guest can work.
        most: bytes that it may use at first.
        leave_seconds: time between the notice to leave the device and SIGKILL.
        sees_phase: it may see whether the holder uses the device, to work in its gaps. The
            phase is a channel between jobs: only for guests of the holder's tenant, and for
            others if an admin allows it.
    """

    device: int
    holder_run_id: str
    slot: int
    mode: str
    floor: int
    most: int
    leave_seconds: float = 5.0
    sees_phase: bool = False

    @classmethod
    def from_json(cls, data: object) -> GuestPlace:
        """Read and check a place.

        Raises:
            ProtocolError: a field is missing, unknown, of a wrong type or out of range.
        """
        take = Fields(data, "beside")
        place = cls(
            device=take.integer("device", None, 0, 4095),
            holder_run_id=take.text("holder_run_id", None, 256),
            slot=take.integer("slot", None, 1, MAX_GUESTS),
            mode=take.choice("mode", None, SHARING_MODES),
            floor=take.integer("floor", None, 1, MAX_BYTES),
            most=take.integer("most", None, 1, MAX_BYTES),
            leave_seconds=take.number("leave_seconds", 5.0, 1.0, 60.0),
            sees_phase=take.boolean("sees_phase", default=False),
        )
        take.finish()
        return place


@dataclass(frozen=True)
class GuestOrder:
    """A guest of a device, as its coordinator needs it."""

    run_id: str
    slot: int
    floor: int
    most: int


@dataclass(frozen=True)
class DeviceOrder:
    """The guests of one device of the holder.

    Attributes:
        device: number of the device.
        slowdown: maximum share of its own pace that the holder may lose, 0.01 to 0.2 by guests,
            and up to 0.5 by a job that is its equal.
        guests: by slot; empty if the device has none.
        drain: no guest may work; remaining guests have their notice to leave.
        turn_seconds: holder and guests run one after the other for this time; 0: at the same
            time, as the control law allows.
    """

    device: int
    slowdown: float
    guests: List[GuestOrder] = field(default_factory=list)
    drain: bool = False
    turn_seconds: float = 0.0

    def to_json(self) -> Json:
        """Return the document; without turns, it has no field for them."""
        document = asdict(self)
        if not self.turn_seconds:
            del document["turn_seconds"]
        return document

    @classmethod
    def from_json(cls, data: object) -> DeviceOrder:
        """Read and check an order.

        Raises:
            ProtocolError: a field is missing, unknown, of a wrong type or out of range.
        """
        take = Fields(data, "share")
        order = cls(
            device=take.integer("device", None, 0, 4095),
            slowdown=take.number("slowdown", None, 0.01, 0.5),
            guests=[_guest(item) for item in take.items("guests", MAX_GUESTS)],
            drain=take.boolean("drain", default=False),
            turn_seconds=take.number("turn_seconds", 0.0, 0.0, 86_400.0),
        )
        take.finish()
        if len({guest.slot for guest in order.guests}) < len(order.guests):
            raise take.refuse("guests", "must have different slots")
        return order


def _guest(data: object) -> GuestOrder:
    take = Fields(data, "guest")
    guest = GuestOrder(
        run_id=take.text("run_id", None, 256),
        slot=take.integer("slot", None, 1, MAX_GUESTS),
        floor=take.integer("floor", None, 1, MAX_BYTES),
        most=take.integer("most", None, 1, MAX_BYTES),
    )
    take.finish()
    return guest
