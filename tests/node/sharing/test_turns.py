"""Turns on a device: order, handover, suspensions, and real processes."""

from itertools import pairwise

import pytest
from session import wait_until
from shared_device import GUEST, STRANGER, SharedDevice

from tessera import protocol
from tessera.node import system
from tessera.node.sharing import files
from tessera.node.sharing.turns import Suspension, Turns

RUNS = ["holder", "one", "two"]


def played(turns: Turns, runs: "list[str]", until: float, *, begin: float = 0.0) -> "list[str]":
    """Who may work, every 0.1 s, if each run needs a look to be suspended."""
    ticks = range(int(begin * 10), int(until * 10))
    return [turns.look(runs, tick / 10, lambda run_id: "T1") for tick in ticks]


def test_each_run_gets_its_turn_and_no_two_at_once() -> None:
    turns = Turns(1.0, "holder", 0.0)

    order = played(turns, RUNS, 6.6)

    changes = [one for one, before in zip(order, ["", *order], strict=False) if one != before]
    assert changes == ["holder", "", "one", "", "two", "", "holder", "", "one", "", "two", ""]
    assert turns.suspension("holder").tier == "T1"
    assert turns.suspension("one").number == 2


def test_the_device_is_handed_over_only_when_the_run_is_suspended() -> None:
    turns = Turns(1.0, "holder", 0.0)

    assert turns.look(RUNS, 1.0, lambda run_id: "") == ""
    assert turns.look(RUNS, 1.4, lambda run_id: "") == ""
    assert turns.look(RUNS, 1.5, lambda run_id: "T0") == "one"

    suspended = turns.suspension("holder")
    assert (suspended.tier, suspended.number) == ("T0", 1)
    assert suspended.longest == pytest.approx(0.5)


def test_a_run_that_leaves_gives_its_turn_to_the_holder() -> None:
    turns = Turns(1.0, "holder", 0.0)
    played(turns, RUNS, 1.5)

    assert turns.look(["holder", "two"], 1.6, lambda run_id: "T1") == "holder"
    assert turns.look(["holder"], 9.0, lambda run_id: "T1") == "holder"
    assert turns.suspension("nobody") == Suspension()


def test_the_present_suspension_has_its_begin_until_the_run_works_again() -> None:
    turns = Turns(1.0, "holder", 0.0)

    turns.look(RUNS, 0.5, lambda run_id: "T0" if run_id == "one" else "")
    waits = {run_id: turns.suspension(run_id) for run_id in RUNS}
    turns.look(RUNS, 1.0, lambda run_id: "T1")
    turns.look(RUNS, 1.1, lambda run_id: "T1")
    handed = {run_id: turns.suspension(run_id).since for run_id in RUNS}

    assert [one.since for one in waits.values()] == [None, 0.5, None]
    assert waits["one"].tier == "T0"
    assert handed == {"holder": 1.1, "one": None, "two": 1.0}


@pytest.mark.parametrize("program", [GUEST, STRANGER])
def test_holder_and_guest_work_one_after_the_other(device: SharedDevice, program: str) -> None:
    holder = device.start_holder()
    device.turn_seconds = 1.0
    device.start_guest(holder, program)
    began = system.boot_clock()
    wait_until(
        lambda: device.state().get("suspensions", 0) >= 3 and len(device.worked()) > 20,
        "three suspensions",
    )

    guests = device.worked(since=began)
    steps = [end for _, end in device.steps_of(holder) if end > began]
    state = device.state()

    assert len(guests) > 10
    assert len(steps) > 10
    # A module and a step of the other run are at most 60 ms; turns take a second.
    turns = sorted([(at, "guest") for at in guests] + [(at, "holder") for at in steps])
    changes = sum(one[1] != other[1] for one, other in pairwise(turns))
    assert changes <= 2 * (state["suspensions"] + state["guests"][0]["suspensions"]) + 2
    assert state["tier"] == "T1"
    assert state["guests"][0]["tier"] in ("T0", "T1")
    assert state["suspend_seconds"] < 1.0
    assert state["guests"][0]["suspend_seconds"] < 1.0


def test_a_suspended_holder_can_be_stopped(device: SharedDevice) -> None:
    holder = device.start_holder()
    device.turn_seconds = 30.0
    device.start_guest(holder, STRANGER)
    device.turn_seconds = 0.2
    device.order(holder, *device.guests)
    wait_until(lambda: device.state().get("suspensions", 0) >= 1, "a suspension")

    device.session.ask(protocol.STOP, run_id=holder.run_id, grace_seconds=1.0)

    assert device.session.exit_of(holder).exit is not None
    assert files.coordinator_of(device.directory) == ""
