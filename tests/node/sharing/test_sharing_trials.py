"""Trials of leaving guests with real processes: times in which a guest gives way.

Marked ``soak``; they need an idle machine. ``-s`` prints the measured times.
"""

import pytest
from session import wait_until
from shared_device import DEVICE, STRANGER, SharedDevice

from tessera import protocol
from tessera.node import system

LEAVES = (
    DEVICE
    + """
from tessera import train
from tessera.train import sharing
ledger = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
while not train.should_yield():
    with sharing.step():
        kernel(float(sys.argv[3]))
    os.write(ledger, b"%f\\n" % time.clock_gettime(time.CLOCK_BOOTTIME))
train.checkpoint({"step": 1}, step=1)
"""
)
STAYS = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + STRANGER


def p(times: list[float], share: float) -> float:
    """Return a percentile of some times."""
    ordered = sorted(times)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("program", "most", "trials"), [(LEAVES, 1.0, 50), (STAYS, 5.5, 12)], ids=["leaves", "stays"]
)
def test_a_guest_gives_way_to_a_new_holder_in_its_time(
    device: SharedDevice, program: str, most: float, trials: int
) -> None:
    """The start of the next holder waits for the end of the guest, at most its grace of 5 s."""
    holder = device.start_holder()
    times = []
    for _ in range(trials):
        guest = device.start_guest(holder, program)
        began = system.boot_clock()
        wait_until(lambda began=began: device.worked(since=began), "work of the guest", 60.0)
        asked = system.boot_clock()
        device.session.ask(protocol.STOP, run_id=guest.run_id, grace_seconds=5.0)
        end = device.session.exit_of(guest).exit
        times.append(system.boot_clock() - asked)
        assert end is not None
        device.order(holder)
    print(
        f"{len(times)} guests: p50 {p(times, 0.5):.3f} s, p99 {p(times, 0.99):.3f} s, "
        f"worst {max(times):.3f} s"
    )

    assert p(times, 0.99) <= most
