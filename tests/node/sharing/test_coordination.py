"""Holder, coordinator and guest as real processes on an emulated device."""

import os
import signal
from pathlib import Path

import pytest
from session import wait_until
from shared_device import STRANGER, SharedDevice

from tessera import protocol
from tessera.node import system
from tessera.node.sharing import figures, files
from tessera.protocol import ProtocolError

EXPIRED_WITHIN = 4.0


def test_a_guest_works_beside_a_holder_and_in_its_gaps(device: SharedDevice) -> None:
    holder = device.start_holder()
    guest = device.start_guest(holder)

    wait_until(lambda: len(device.worked()) > 15, "work of the guest")

    state = device.state()
    assert state["holder_run_id"] == holder.run_id
    assert state["guests"][0]["run_id"] == guest.run_id
    assert state["baseline"] > 0.03
    bound = files.read_document(str(device.session.directory(guest) / protocol.JOB_BOUND_FILE))
    assert bound is not None
    assert bound["host"] == str(device.session.directory(holder) / protocol.PHASE_FILE)


def test_a_program_without_the_library_is_frozen_until_the_gate_opens(
    device: SharedDevice,
) -> None:
    holder = device.start_holder()
    guest = device.start_guest(holder, STRANGER)
    frozen = device.session.directory(guest) / files.FROZEN_FILE
    assert frozen.exists()
    assert not device.worked()

    wait_until(lambda: len(device.worked()) > 5, "work of the guest")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_or_frozen_coordinator_closes_the_gate_within_4_s(
    device: SharedDevice, number: signal.Signals
) -> None:
    holder = device.start_holder()
    device.start_guest(holder)
    wait_until(lambda: len(device.worked()) > 8, "work of the guest")
    runner = device.session.status(holder).runner_pid
    assert runner is not None

    os.kill(runner, number)
    killed = system.boot_clock()
    wait_until(lambda: system.boot_clock() > killed + EXPIRED_WITHIN + 1, "the expiry")

    late = device.worked(since=killed + EXPIRED_WITHIN)
    if number == signal.SIGSTOP:
        os.kill(runner, signal.SIGCONT)
    assert late == []


def test_a_guest_of_a_holder_that_has_ended_leaves(device: SharedDevice) -> None:
    holder = device.start_holder()
    guest = device.start_guest(holder)
    wait_until(device.worked, "work of the guest")

    device.session.ask(protocol.STOP, run_id=holder.run_id, grace_seconds=0.0)

    end = device.session.exit_of(guest).exit
    assert end is not None
    assert (end.cause, end.failure) == (protocol.CAUSE_DEVICE, protocol.PLATFORM)
    assert "holder-gone" in end.message


def test_a_guest_never_starts_beside_another_run(device: SharedDevice) -> None:
    first, second = device.start_holder(), device.start_holder()
    device.order(first)
    guest = device.guest_of(second)
    device.session.prepare(guest)

    with pytest.raises(ProtocolError, match="does not coordinate") as refused:
        device.session.go(guest)

    assert refused.value.code == "holder-gone"
    assert refused.value.failure == protocol.PLATFORM


def test_a_drained_device_has_no_guest_and_older_orders_change_nothing(
    device: SharedDevice,
) -> None:
    holder = device.start_holder()
    guest = device.start_guest(holder)
    wait_until(device.worked, "work of the guest")

    device.order(holder, guest, drain=True)
    path = str(device.session.directory(guest) / files.BOUND_FILE)
    wait_until(lambda: (files.read_document(path) or {}).get("why") == "drain", "the close")
    device.number = 0
    device.order(holder, guest)
    drained = system.boot_clock()
    wait_until(lambda: system.boot_clock() > drained + 1.5, "time without work")

    assert device.worked(since=drained + 0.2) == []


def test_a_promoted_guest_works_without_bounds_and_coordinates(device: SharedDevice) -> None:
    holder = device.start_holder()
    guest = device.start_guest(holder)
    wait_until(device.worked, "work of the guest")
    device.session.ask(protocol.STOP, run_id=holder.run_id, grace_seconds=0.0)
    device.session.exit_of(holder)

    device.order(guest)

    wait_until(lambda: files.coordinator_of(device.directory) == guest.run_id, "promotion")
    promoted = system.boot_clock()
    wait_until(lambda: len(device.worked(since=promoted)) > 100, "work without bounds")
    assert device.session.status(guest).phase == protocol.RUNNING


def test_a_stopped_guest_is_thawed_for_its_grace(device: SharedDevice, tmp_path: Path) -> None:
    holder = device.start_holder()
    saving = (
        "import signal, sys, time\n"
        f"def save(*_): open({str(tmp_path / 'saved')!r}, 'w').close(); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        f"open({str(tmp_path / 'ready')!r}, 'w').close()\n"
        "while True: time.sleep(0.01)\n"
    )
    guest = device.start_guest(holder, saving)
    wait_until((tmp_path / "ready").exists, "the guest")
    device.order(holder, guest, drain=True)
    frozen = device.session.directory(guest) / files.FROZEN_FILE
    wait_until(frozen.exists, "the freeze")

    device.session.ask(protocol.STOP, run_id=guest.run_id, grace_seconds=5.0)

    end = device.session.exit_of(guest).exit
    assert end is not None
    assert (end.cause, end.code) == (protocol.CAUSE_STOPPED, 0)
    assert (tmp_path / "saved").exists()


def test_orders_for_foreign_devices_and_runs_that_do_not_run_are_refused(
    device: SharedDevice,
) -> None:
    holder = device.start_holder()
    order = {"device": 1, "slowdown": 0.05, "guests": [], "drain": False}
    share = {"run_id": holder.run_id, "number": 1}

    with pytest.raises(ProtocolError, match="not one of the run"):
        device.session.ask(protocol.SHARE, **share, devices=[order])
    device.session.ask(protocol.STOP, run_id=holder.run_id, grace_seconds=0.0)
    device.session.exit_of(holder)
    with pytest.raises(ProtocolError) as refused:
        device.session.ask(protocol.SHARE, **share, devices=[])
    assert refused.value.code == "not-running"


def test_the_telemetry_shows_the_company_of_a_device(device: SharedDevice) -> None:
    holder = device.start_holder()
    guest = device.start_guest(holder)
    wait_until(device.worked, "work of the guest")

    sample = device.session.ask(protocol.TELEMETRY)["telemetry"]

    company = sample["devices"][0]["company"]
    assert company["holder_run_id"] == holder.run_id
    assert company["guests"][0]["run_id"] == guest.run_id
    assert 0 <= company["open"] <= 1


def test_a_frozen_guest_ends_with_its_runner(device: SharedDevice) -> None:
    holder = device.start_holder()
    guest = device.start_guest(holder, STRANGER)
    device.order(holder, guest, drain=True)
    frozen = device.session.directory(guest) / files.FROZEN_FILE
    wait_until(frozen.exists, "the freeze")
    status = device.session.status(guest)
    assert status.runner_pid is not None
    assert status.pid is not None

    os.kill(status.runner_pid, signal.SIGKILL)

    ended = device.session.exit_of(guest).exit
    assert ended is not None
    assert ended.cause == protocol.CAUSE_LOST
    assert system.start_ticks(status.pid) is None


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("trial", range(100))
def test_in_100_trials_no_guest_works_4_s_after_the_end_of_its_coordinator(
    device: SharedDevice, trial: int
) -> None:
    holder = device.start_holder()
    device.start_guest(holder)
    wait_until(lambda: len(device.worked()) > trial % 20, "work of the guest")
    runner = device.session.status(holder).runner_pid
    assert runner is not None

    os.kill(runner, signal.SIGKILL if trial % 2 else signal.SIGSTOP)
    ended = system.boot_clock()
    wait_until(lambda: system.boot_clock() > ended + EXPIRED_WITHIN + 1, "the expiry")

    late = device.worked(since=ended + EXPIRED_WITHIN)
    system.kill_quietly(runner, signal.SIGCONT)
    assert late == []


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("gap", [0.0, 0.02, 0.18])
def test_over_60_s_a_paced_holder_loses_at_most_5_percent(
    device: SharedDevice, gap: float
) -> None:
    """Needs an idle machine; both parts are steps of one holder, with and without its guest."""
    holder = device.start_holder(gap=gap)
    guest = device.guest_of(holder)
    device.order(holder, guest)  # the holder reports its steps from here on
    ordered = system.boot_clock()
    wait_until(lambda: system.boot_clock() > ordered + 20, "steps alone", 60)
    device.session.start(guest)
    began = system.boot_clock()
    wait_until(lambda: system.boot_clock() > began + 60, "60 s with a guest", 90)

    steps = device.steps_of(holder)
    alone = [end - start for start, end in steps if ordered < start and end < began]
    shared = [end - start for start, end in steps if began < start]
    mean = sum(alone) / len(alone)
    loss = sum(shared) / len(shared) / mean - 1
    spread = figures.stdev([*alone, *shared]) / mean
    error = spread * (1 / len(alone) + 1 / len(shared)) ** 0.5
    share = len(device.worked(since=began)) * 0.004 / 60
    print(f"gap {gap}: loss {loss:.3f} (error {error:.3f}), share of the guest {share:.3f}")
    assert loss <= 0.05 + 2 * error
    assert device.worked(since=began)
