"""An emulated device for real processes, with paced programs that share it.

The device's file has the time until which the device is busy. A kernel begins at that time and
sleeps, so the device serves one kernel at a time, first come first served, and needs next to no
processor time. As on a GPU, the kernel of a process that is frozen meanwhile ends in time.
"""

import json
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from session import Session, make_spec

from tessera import protocol
from tessera.device_sharing import COOPERATIVE, DeviceOrder, GuestOrder, GuestPlace
from tessera.node.sharing import files
from tessera.protocol import RunSpec

DEVICE = """
import fcntl, os, sys, time
device = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o666)
def kernel(seconds):
    fcntl.flock(device, fcntl.LOCK_EX)
    end = max(time.monotonic(), float(os.pread(device, 32, 0) or 0.0)) + seconds
    os.pwrite(device, b"%32.6f" % end, 0)
    fcntl.flock(device, fcntl.LOCK_UN)
    time.sleep(max(end - time.monotonic(), 0.0))
"""
HOLDER = (
    DEVICE
    + """
from tessera.train import report, sharing
kernels, seconds, gap = int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
for step in range(1_000_000):
    began = time.perf_counter()
    with sharing.step():
        for _ in range(kernels):
            kernel(seconds)
        with sharing.waiting():
            time.sleep(gap)
    report(step=step, samples=1, step_seconds=time.perf_counter() - began)
"""
)
GUEST = (
    DEVICE
    + """
from tessera.train import sharing
ledger = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
seconds = float(sys.argv[3])
while True:
    with sharing.step():
        kernel(seconds)
    os.write(ledger, b"%f\\n" % time.clock_gettime(time.CLOCK_BOOTTIME))
"""
)
STRANGER = (
    DEVICE
    + """
ledger = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
while True:
    kernel(float(sys.argv[3]))
    os.write(ledger, b"%f\\n" % time.clock_gettime(time.CLOCK_BOOTTIME))
"""
)


LEASE_SECONDS = 3600.0
"""Nobody renews the leases of these runs, and trials take minutes."""


class SharedDevice:
    """A declared device of a node, and the runs that share it.

    Args:
        session: a session whose jobs are not isolated.
        place: directory for the programs and their files.
    """

    def __init__(self, session: Session, place: Path) -> None:
        self.session, self.place = session, place
        self.directory = files.device_dir(str(session.home / protocol.ROOT_DIR), 0)
        self.ledger = place / "ledger"
        self.number = 0
        self.turn_seconds = 0.0
        self.guests: list[RunSpec] = []

    def command(self, program: str, *arguments: Any) -> str:
        path = self.place / f"{uuid.uuid4().hex}.py"
        path.write_text(program)
        words = [sys.executable, str(path), str(self.place / "device"), *map(str, arguments)]
        return "exec " + " ".join(words)

    def start_holder(
        self, *, kernels: int = 5, seconds: float = 0.004, gap: float = 0.02
    ) -> RunSpec:
        """Start a holder whose steps are some kernels and a gap."""
        command = self.command(HOLDER, kernels, seconds, gap)
        spec = make_spec(command, devices=[0], lease_seconds=LEASE_SECONDS)
        self.session.start(spec)
        return spec

    def guest_of(self, holder: RunSpec, program: str = GUEST, *, slot: int = 1) -> RunSpec:
        """Build a guest whose modules take 4 ms of the device."""
        place = GuestPlace(
            device=0,
            holder_run_id=holder.run_id,
            slot=slot,
            mode=COOPERATIVE,
            floor=1,
            most=1 << 30,
            leave_seconds=1.0,
            sees_phase=True,
        )
        command = self.command(program, self.ledger, 0.004)
        return make_spec(command, devices=[0], beside=[place], lease_seconds=LEASE_SECONDS)

    def order(self, holder: RunSpec, *guests: RunSpec, drain: bool = False) -> None:
        """Send the guests of the device to the holder's runner."""
        self.number += 1
        orders = [
            GuestOrder(guest.run_id, guest.beside[0].slot, guest.beside[0].floor, 1 << 30)
            for guest in guests
        ]
        order = DeviceOrder(0, 0.05, orders, drain, self.turn_seconds)
        self.session.ask(
            protocol.SHARE,
            run_id=holder.run_id,
            number=self.number,
            devices=[order.to_json()],
        )

    def start_guest(self, holder: RunSpec, program: str = GUEST) -> RunSpec:
        """Order a guest, and start it."""
        guest = self.guest_of(holder, program)
        self.guests.append(guest)
        self.order(holder, guest)
        self.session.start(guest)
        return guest

    def worked(self, since: float = 0.0) -> list[float]:
        """Boot-clock times at which the guest has ended a module."""
        if not self.ledger.exists():
            return []
        times = [float(line) for line in self.ledger.read_text().split("\n")[:-1]]
        return [one for one in times if one >= since]

    def state(self) -> dict[str, Any]:
        """The coordinator's state; empty without one."""
        return files.read_document(self.directory + "/" + files.DEVICE_STATE_FILE) or {}

    def steps_of(self, holder: RunSpec) -> list[tuple[float, float]]:
        """Start and end of the holder's reported steps."""
        found: list[tuple[float, float]] = []
        text = self.session.log(holder, protocol.STREAM_REPORTS)
        for line in text.splitlines():
            end = found[-1][1] if found else 0.0
            found += files.steps_of(json.loads(line), end, time.clock_gettime(time.CLOCK_BOOTTIME))
        return found
