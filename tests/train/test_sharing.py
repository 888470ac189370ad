"""The in-job part of device sharing: gates of a guest, and the phase page of a holder."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tessera import train
from tessera.node.sharing import bounds, files
from tessera.train import sharing
from tessera.train.guest_gate import Gate
from tessera.train.sharing import HolderPhase


class Clock:
    """A boot clock that moves only by sleeping; something can happen at times on the way."""

    def __init__(self) -> None:
        self.now = 100.0
        self.events: list[tuple[float, Callable[[], object]]] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        until = self.now + seconds
        for at, event in sorted(self.events, key=lambda one: one[0]):
            if at <= until:
                self.events.remove((at, event))
                self.now = max(self.now, at)
                event()
        self.now = until


class Guest:
    """A gate with its files."""

    def __init__(self, place: Path) -> None:
        self.clock = Clock()
        self.place = place
        self.bound: bounds.Bound | None = None
        self.gate = Gate(str(place / "bound.json"), self.clock, self.clock.sleep)
        self.page = HolderPhase(str(place / "phase"), self.clock)

    def issue(self, compute: float, *, host: bool = False, lifted: bool = False) -> None:
        self.bound = bounds.issued(self.bound, compute, 1 << 30, self.clock.now)
        host_path = str(self.place / "phase") if host else None
        document = files.bound_document(self.bound, host=host_path, lifted=lifted)
        (self.place / "bound.json").write_text(json.dumps(document))

    def work(self, seconds: float) -> None:
        """Run one step of a plain program."""
        self.gate.wait()
        self.clock.now += seconds
        self.gate.end_step()


@pytest.fixture
def guest(tmp_path: Path) -> Guest:
    found = Guest(tmp_path)
    found.issue(1.0)
    for _ in range(10):
        found.work(0.002)
    return found


def test_the_gate_slows_a_guest_with_notice_and_reads_the_notice_for_nobody(
    guest: Guest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESSERA_JOB_CONTROL", str(guest.place / "control.json"))
    guest.issue(0.0)
    (guest.place / "control.json").write_text('{"notice": "preempted"}')
    began = guest.clock.now

    for _ in range(50):
        guest.work(0.02)

    assert 4.0 < guest.clock.now - began < 6.0
    assert not (guest.place / "listens").exists()
    assert train.should_yield()
    assert (guest.place / "listens").exists()


def test_a_guest_waits_until_its_gate_opens(tmp_path: Path) -> None:
    guest = Guest(tmp_path)
    guest.clock.events.append((101.5, lambda: guest.issue(1.0)))

    waited = guest.gate.wait()

    assert 1.5 <= waited < 1.6


def test_an_expired_bound_closes_the_gate(guest: Guest) -> None:
    guest.clock.now += bounds.LIFETIME_SECONDS
    guest.clock.events.append((guest.clock.now + 2.0, lambda: guest.issue(1.0)))

    assert guest.gate.wait() >= 2.0


def test_beside_a_busy_holder_a_guest_works_for_the_part_of_its_compute(guest: Guest) -> None:
    guest.page.change(busy=True)
    guest.issue(0.05, host=True)
    began = guest.clock.now

    for _ in range(20):
        guest.issue(0.05, host=True)
        guest.work(0.002)

    worked = 20 * 0.002
    assert 0.03 < worked / (guest.clock.now - began) < 0.06


def test_in_gaps_a_guest_works_freely_and_stops_before_the_holder_needs_the_device(
    guest: Guest,
) -> None:
    begin, starts = guest.clock.now, []
    for number in range(30):
        at = begin + 0.04 * number
        guest.clock.events.append((at, lambda: guest.page.change(busy=True)))
        guest.clock.events.append((at, lambda: guest.issue(0.01, host=True)))
        guest.clock.events.append((at + 0.02, lambda: guest.page.change(busy=False)))
    while guest.clock.now < begin + 1.16:
        guest.gate.wait()
        starts.append((guest.clock.now - begin) % 0.04)
        guest.clock.sleep(0.002)
        guest.gate.end_step()
    late = starts[len(starts) // 2 :]

    inside = [one for one in late if 0.02 <= one <= 0.0385]
    assert len(late) - len(inside) <= 4  # 0.01 of 0.6 s, for modules of 2 ms
    assert len(inside) >= 14 * 7  # of at most 9 that fit into a gap


def test_a_promoted_guest_has_no_gate(guest: Guest) -> None:
    guest.issue(1.0, lifted=True)
    guest.gate.wait()
    guest.clock.now += 100

    assert guest.gate.wait() == 0.0
    assert guest.gate.bound is None


def test_inside_busy_all_gates_are_open(guest: Guest) -> None:
    with guest.gate.held_open():
        guest.issue(0.0)
        guest.clock.now += 0.05
        assert guest.gate.wait() == 0.0


def test_a_guest_reports_that_it_stands_once_for_a_bound(
    guest: Guest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESSERA_JOB_REPORTS", str(tmp_path / "reports.jsonl"))
    guest.issue(0.0)
    assert guest.bound
    closed = guest.bound.number
    guest.clock.now += 0.1
    guest.clock.events.append((guest.clock.now + 1.0, lambda: guest.issue(1.0)))

    guest.gate.wait()

    lines = [json.loads(line) for line in (tmp_path / "reports.jsonl").read_text().splitlines()]
    found = [files.report_of(line) for line in lines]
    assert [one.stands for one in found if one is not None] == [closed, 0]
    assert all(one is not None and one.listens == "step" for one in found)


def test_a_step_of_a_holder_sets_its_phase_and_waiting_clears_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESSERA_JOB_PHASE", str(tmp_path / "own-phase"))
    seen = []

    def items() -> Iterator[int]:
        yield 1
        seen.append(page.read()[0].busy)

    with sharing.step():
        page = files.PhasePage(str(tmp_path / "own-phase"))
        seen.append(page.read()[0].busy)
        assert list(sharing.wrap_loader(items())) == [1]
        seen.append(page.read()[0].busy)
    seen.append(page.read()[0].busy)

    assert seen == [True, False, True, False]
    assert page.read()[1] > 0


def test_outside_a_job_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TESSERA_JOB_BOUND", raising=False)
    monkeypatch.delenv("TESSERA_JOB_PHASE", raising=False)

    with sharing.step(), sharing.busy(), sharing.waiting():
        pass

    assert sharing.gate() is None
