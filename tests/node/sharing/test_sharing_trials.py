"""Trials with real processes: times in which guests leave, and in which turns change.

Marked ``soak``; they need an idle machine. ``-s`` prints the measured times.
"""

from itertools import pairwise
from pathlib import Path

import pytest
from session import make_spec, wait_until
from shared_device import DEVICE, LEASE_SECONDS, STRANGER, SharedDevice

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

# Kernels that a GPU has queued end while their process is frozen, so these take no lock.
WORKS = """
import os, sys, time
from tessera.train import report, sharing
ledger = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
for step in range(1_000_000):
    with sharing.step():
        time.sleep(0.01)
    os.write(ledger, b"%f\\n" % time.clock_gettime(time.CLOCK_BOOTTIME))
    if step % 10 == 0:
        report(step=step, samples=10, step_seconds=0.01)
"""
WORKS_WITHOUT_LIBRARY = """
import os, sys, time
ledger = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
while True:
    time.sleep(0.01)
    os.write(ledger, b"%f\\n" % time.clock_gettime(time.CLOCK_BOOTTIME))
"""
CHANGES = 100


def percentile(times: list[float], share: float) -> float:
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
        f"{len(times)} guests: p50 {percentile(times, 0.5):.3f} s, "
        f"p99 {percentile(times, 0.99):.3f} s, worst {max(times):.3f} s"
    )

    assert percentile(times, 0.99) <= most


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("program", [WORKS, WORKS_WITHOUT_LIBRARY], ids=["gates", "frozen"])
def test_turns_change_within_a_second(device: SharedDevice, program: str) -> None:
    """The runs record when they work, and the coordinator how long each suspension takes."""
    records = device.place / "holder-ledger"
    holder = make_spec(device.command(WORKS, records), devices=[0], lease_seconds=LEASE_SECONDS)
    device.session.start(holder)
    device.turn_seconds = 1.0
    device.start_guest(holder, program)
    wait_until(lambda: device.state().get("suspensions", 0) > CHANGES // 2, "turns", 500.0)

    state = device.state()
    worst = max(state["suspend_seconds"], state["guests"][0]["suspend_seconds"])
    works = sorted(
        [(at, "holder") for at in _times(records)] + [(at, "guest") for at in device.worked()]
    )
    began = next(at for at, run in works if run == "guest")
    idle = [
        after[0] - before[0]
        for before, after in pairwise(works)
        if before[1] != after[1] and before[0] >= began
    ]
    print(
        f"{len(idle)} changes: suspended within {worst:.3f} s; "
        f"idle p50 {percentile(idle, 0.5):.3f} s, p95 {percentile(idle, 0.95):.3f} s, "
        f"worst {max(idle):.3f} s"
    )

    assert CHANGES - 5 <= len(idle) <= CHANGES + 10, "two runs worked at once, or turns are lost"
    assert worst + percentile(idle, 0.95) < 1.0


def _times(path: Path) -> list[float]:
    return [float(line) for line in path.read_text().split("\n")[:-1]]
