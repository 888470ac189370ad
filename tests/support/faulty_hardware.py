"""Model of nodes whose GPUs fail, with the health that each GPU must have by the documentation."""

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from tessera import hardware
from tessera.hardware import Condition
from tessera.inventory import Device, Inventory

SLOTS: Final = 8
MODEL: Final = "a"
INSTANCE: Final = "a-1g"
"""Type of the two MIG instances of a GPU."""
FAULTS: Final = (
    hardware.XID_HARDWARE,
    hardware.XID_LINK,
    hardware.ECC_UNCORRECTABLE,
    hardware.REMAP_FAILED,
    hardware.RESET_REQUIRED,
)
NOTES: Final = (hardware.REMAP_PENDING, hardware.NVLINK_ERRORS, hardware.HOT)
MOST_TRIALS: Final = 3


@dataclass(eq=False)
class Board:
    """A GPU, wherever it is.

    Attributes:
        conditions: codes that its driver reports now.
        owes_test: it was in quarantine by a condition and has not returned since.
        failed: a canary job has failed it, or could not test it three times.
        trials: canary jobs in turn that could not test it.
        marked: an admin has quarantined it.
        until: end of this quarantine.
    """

    uuid: str
    conditions: set[str] = field(default_factory=set)
    owes_test: bool = False
    failed: bool = False
    trials: int = 0
    marked: bool = False
    until: datetime | None = None

    @property
    def is_faulty(self) -> bool:
        return bool(self.conditions & set(FAULTS))

    def observe(self, now: datetime) -> None:
        """Follow a probe that has found the GPU."""
        if self.marked and self.until is not None and self.until <= now:
            self.marked, self.until = False, None
        if self.is_faulty:
            self.owes_test, self.failed, self.trials = True, False, 0

    def is_in_service(self) -> bool:
        return not (self.is_faulty or self.owes_test or self.failed or self.marked)

    def release(self) -> None:
        """Return by the hand of an admin, without a test."""
        self.marked, self.until = False, None
        self.owes_test, self.failed, self.trials = self.is_faulty, False, 0

    def tested(self, result: str) -> None:
        """Follow the end of a canary job; a test does not clear a condition of its time."""
        self.trials = self.trials + 1 if result == "untested" else 0
        if self.is_faulty or not self.owes_test:
            return
        if result == "passed":
            self.owes_test = False
        elif result == "failed" or self.trials >= MOST_TRIALS:
            self.owes_test, self.failed = False, True


@dataclass(eq=False)
class Machine:
    """A node with eight slots.

    Attributes:
        boards: the GPU in each slot.
        away: GPUs that were lost and may come back, with their slots.
        mig: slots whose GPU is divided into two instances.
        has_fabric: whether the fabric manager has registered the GPUs.
        in_contact: whether the control plane reaches the node.
        boot: number of its boots.
    """

    name: str
    boards: dict[int, Board] = field(default_factory=dict)
    away: dict[int, Board] = field(default_factory=dict)
    mig: set[int] = field(default_factory=set)
    has_fabric: bool = True
    in_contact: bool = True
    boot: int = 1
    instances: dict[str, Board] = field(default_factory=lambda: defaultdict(lambda: Board("")))

    def __post_init__(self) -> None:
        for slot in range(SLOTS):
            self.boards[slot] = Board(f"GPU-{self.name}-{slot}")

    @property
    def boot_id(self) -> str:
        return f"{self.name}-boot-{self.boot}"

    def whole(self) -> dict[int, Board]:
        """Return the GPUs that are not divided, by slot."""
        return {slot: one for slot, one in self.boards.items() if slot not in self.mig}

    def found(self) -> dict[str, Board]:
        """Return what a probe finds, by UUID."""
        found = {one.uuid: one for one in self.whole().values()}
        for slot in self.mig & self.boards.keys():
            for part in range(2):
                uuid = f"MIG-{self.boards[slot].uuid}-{part}"
                self.instances[uuid].uuid = uuid
                found[uuid] = self.instances[uuid]
        return found

    def reboot(self) -> None:
        """Clear what the driver and the kernel remember, and find all GPUs again."""
        self.boot += 1
        self.has_fabric = True
        self.boards |= {slot: one for slot, one in self.away.items() if slot not in self.boards}
        self.away = {slot: one for slot, one in self.away.items() if self.boards[slot] is not one}
        for board in self.boards.values():
            board.conditions -= {*FAULTS, *NOTES} - {hardware.REMAP_FAILED}

    def observe(self, now: datetime) -> None:
        """Follow a probe."""
        for board in self.found().values():
            board.observe(now)

    def report(self) -> Inventory:
        """Return the inventory of a probe."""
        devices: list[Device] = []
        conditions: list[Condition] = []
        for slot, board in sorted(self.boards.items()):
            address = f"0000:{slot:02x}:00.0"
            path = [slot // 4, slot // 2]
            named = [(MODEL, board.uuid)]
            if slot in self.mig:
                named = [(INSTANCE, f"MIG-{board.uuid}-{part}") for part in range(2)]
            else:
                conditions += [Condition(one, uuid=board.uuid) for one in sorted(board.conditions)]
            for model, uuid in named:
                devices.append(
                    Device(
                        index=len(devices),
                        type=model,
                        path=path,
                        uuid=uuid,
                        pci_address=address,
                        memory_bytes=(80 if model == MODEL else 10) << 30,
                    )
                )
        if not self.has_fabric:
            conditions.append(Condition(hardware.FABRIC))
        return Inventory(
            devices=devices,
            levels=["node", "socket", "pcie", "device"],
            cpus=32,
            memory_bytes=64 << 30,
            reader="nvml",
            conditions=conditions,
        )
