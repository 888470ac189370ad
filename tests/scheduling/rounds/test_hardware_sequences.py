"""Random sequences of hardware events on nodes with running and waiting jobs.

``tests/scheduling/clusters/test_hardware_events.py`` covers moved boards, mixed types and hanging
drivers; this module covers quarantines and their ends, reboots, charges and the events of jobs.
"""

import random
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from django.db.models import Sum

from scheduling.clusters.models import Device, Node, VcQuota
from scheduling.clusters.queries.cluster import cluster_snapshot
from scheduling.clusters.services.node_contact import contact_back, contact_lost, record_probe
from scheduling.clusters.services.node_holds import set_device_health
from scheduling.core.lifecycle import JobEventKind, JobState, next_state
from scheduling.jobs.models import Job, JobEvent
from scheduling.maintenance.invariants import violations
from scheduling.rounds.services.canaries import finish_ended, start_due
from scheduling.runs.models import CanaryRun, Lease, Member
from scheduling.runs.services import attempts
from scheduling.usage.models import UsageDay
from scheduling.usage.services.usage import sum_all_usage
from tessera import hardware, protocol
from tests.factories.cluster import OPPORTUNISTIC
from tests.factories.scheduling import (
    ADMIN,
    CONFIG,
    NOW,
    make_two_tenants,
    run_round,
    submit,
)
from tests.support.faulty_hardware import FAULTS, INSTANCE, MODEL, NOTES, Board, Machine

pytestmark = pytest.mark.django_db
STEPS = 15
FAILING = 2
"""Slots of each node whose GPUs fail."""
WEIGHTS = (6, 2, 1)
"""Weights of the nodes, so that several events concern one GPU."""
GONE = ("exited", "released")


class Sequence:
    """One sequence, its nodes, and what the database must contain."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now = NOW
        self.machines = {f"node-{number}": Machine(f"node-{number}") for number in (1, 2, 3)}
        self.ids = dict(Node.objects.values_list("name", "pk"))
        self.quotas = set(VcQuota.objects.values_list("chain", "level", "count"))
        self.charged = 0.0
        self.seen: dict[int, datetime] = {}
        self.log: list[str] = []
        for machine in self.machines.values():
            contact_back(node_id=self.ids[machine.name], boot_id=machine.boot_id, now=NOW)
            self.probe(machine)

    # -- events of hardware ------------------------------------------------------------------

    def some_slot(self, machine: Machine) -> int:
        """Return the slot of a GPU that may fail."""
        return self.chance.choice(sorted(machine.whole())[:FAILING])

    def lost(self, machine: Machine) -> None:
        if len(machine.whole()) > FAILING:
            slot = self.some_slot(machine)
            machine.away[slot] = machine.boards.pop(slot)

    def back(self, machine: Machine) -> None:
        for slot in sorted(machine.away):
            machine.boards[slot] = machine.away.pop(slot)
            if self.chance.random() < 0.5:
                machine.boards[slot].conditions.clear()
            return

    def swapped(self, machine: Machine) -> None:
        """Exchange two boards of two nodes, with all that happened to them."""
        other = self.chance.choice([one for one in self.machines.values() if one is not machine])
        held = set(self.held().values())
        slot, its = self.some_slot(machine), self.some_slot(other)
        is_idle = not held & {machine.boards[slot].uuid, other.boards[its].uuid}
        if is_idle and other.in_contact:
            pair = machine.boards[slot], other.boards[its]
            other.boards[its], machine.boards[slot] = pair
            for one in (machine, other):
                self.probe(one)

    def fault(self, machine: Machine) -> None:
        board = machine.boards[self.some_slot(machine)]
        board.conditions.add(self.chance.choice(FAULTS))

    def note(self, machine: Machine) -> None:
        board = machine.boards[self.some_slot(machine)]
        board.conditions ^= {self.chance.choice(NOTES)}

    def reset(self, machine: Machine) -> None:
        faulty = [one for one in machine.whole().values() if one.conditions]
        if faulty:
            board = self.chance.choice(faulty)
            board.conditions -= set(FAULTS) if self.chance.random() < 0.5 else {*FAULTS, *NOTES}

    def fabric(self, machine: Machine) -> None:
        machine.has_fabric = not machine.has_fabric

    def mig(self, machine: Machine) -> None:
        """Divide a GPU, or undo it; only an idle GPU can change."""
        held = set(self.held().values())
        slots = [
            slot
            for slot, board in machine.boards.items()
            if len(machine.whole()) > FAILING + 1 or slot in machine.mig
            if not held & {board.uuid, *(f"MIG-{board.uuid}-{part}" for part in range(2))}
        ]
        if slots:
            machine.mig ^= {self.chance.choice(slots)}

    def down(self, machine: Machine) -> None:
        machine.in_contact = False
        contact_lost(node_id=self.ids[machine.name], reason="silent", now=self.now)

    def reboot(self, machine: Machine) -> None:
        machine.reboot()
        for member in Member.objects.filter(node__name=machine.name, step="running"):
            self.charge(member, max(self.seen.get(member.pk, NOW), member.started_at or NOW))
            attempts.mark_lost(member_id=member.pk, message="the node has booted", now=self.now)

    # -- events of people and jobs -----------------------------------------------------------

    def mark(self, machine: Machine) -> None:
        rows = Device.objects.filter(node__name=machine.name, retired_at=None)
        row = self.chance.choice(list(rows.order_by("index"))[:FAILING])
        board = machine.found().get(row.uuid)
        if board is None:
            return
        hours = self.chance.choice([None, 1.0])
        board.marked = True
        board.until = None if hours is None else self.now + timedelta(hours=hours)
        self.set_health(row, False, hours)

    def lift(self, machine: Machine) -> None:
        for row in Device.objects.filter(node__name=machine.name, retired_at=None, healthy=False):
            board = machine.found().get(row.uuid)
            if board is not None:
                board.release()
                self.set_health(row, True)
                return

    def set_health(self, row: Device, healthy: bool, hours: float | None = None) -> None:
        set_device_health(
            viewer=ADMIN,
            node_id=row.node_id,
            index=row.index,
            healthy=healthy,
            reason="loud fan",
            hours=hours,
            now=self.now,
        )

    def submit(self, machine: Machine) -> None:
        kind, devices = MODEL, self.chance.choice([1, 1, 2, 4])
        more = {} if self.chance.random() < 0.6 else OPPORTUNISTIC
        if self.chance.random() < 0.1 and Device.objects.filter(model=INSTANCE).exists():
            kind, devices, more = INSTANCE, 1, OPPORTUNISTIC
        worker = {"device_types": [kind], "instances": self.chance.choice([1, 1, 2])}
        owner = self.chance.choice(["alice", "bob"])
        submit(owner, devices=devices, worker=worker, retries={"node": 2}, **more)

    def end(self, machine: Machine) -> None:
        running = Job.objects.unscoped().filter(state="running").order_by("pk")
        job = self.chance.choice(list(running) or [None])
        if job is None:
            return
        code = self.chance.choice([0, 0, 1, 127])
        run = CanaryRun.objects.filter(job=job, ended_at=None).select_related("device").first()
        members = Member.objects.filter(attempt__job=job, attempt__ended_at=None)
        if members.exclude(node__contact="ready").exists():
            return
        for member in members:
            self.exit(member, code)
        if run is not None:
            board = next(
                (
                    one.found()[run.device.uuid]
                    for one in self.machines.values()
                    if run.device.uuid in one.found()
                ),
                None,
            )
            known = {0: "passed", 1: "failed"}.get(code, "untested")
            if board is not None and run.device.retired_at is None:
                board.tested(known)
            assert finish_ended(now=self.now) >= 1

    # -- the control plane -------------------------------------------------------------------

    def probe(self, machine: Machine) -> None:
        if not machine.in_contact:
            return
        machine.observe(self.now)
        record_probe(
            node_id=self.ids[machine.name],
            inventory=machine.report().to_json(),
            has_docker=False,
            cpus=32.0,
            memory_bytes=64 << 30,
            now=self.now,
        )
        Node.objects.filter(name=machine.name).update(isolation_level="user")
        running = Member.objects.filter(node__name=machine.name, step="running")
        ids = list(running.values_list("pk", flat=True))
        attempts.record_renewal(member_ids=ids, now=self.now)
        self.seen |= dict.fromkeys(ids, self.now)

    def charge(self, member: Member, until: datetime) -> None:
        if member.started_at is not None:
            seconds = (until - member.started_at).total_seconds()
            assert seconds >= 0
            self.charged += seconds * len(member.devices)

    def exit(self, member: Member, code: int | None) -> None:
        cause = protocol.CAUSE_STOPPED if code is None else protocol.CAUSE_EXITED
        record = protocol.ExitRecord(
            cause=cause,
            failure=protocol.USER if code else "",
            at=self.now.timestamp(),
            code=code or 0,
        )
        self.charge(member, self.now)
        attempts.mark_exited(member_id=member.pk, record=record, now=self.now)

    def obey(self) -> None:
        """Let the nodes in contact follow the directives."""
        there = Member.objects.filter(node__contact="ready").exclude(step__in=GONE)
        for member in there.exclude(stop_asked_at=None):
            if member.step == "running":
                self.exit(member, None)
            else:
                attempts.mark_cancelled(member_id=member.pk, now=self.now)
        ids = list(there.filter(step="waiting").values_list("pk", flat=True))
        attempts.mark_preparing(member_ids=ids, now=self.now)
        attempts.mark_all_prepared(member_ids=ids, now=self.now)
        for pk in there.filter(step="starting").values_list("pk", flat=True):
            attempts.mark_running(
                member_id=pk, pid=100, boot_id="", started_at=self.now, now=self.now
            )
        finish_ended(now=self.now)

    def step(self) -> None:
        events: tuple[tuple[Callable[[Machine], None], int], ...] = (
            *((self.submit, 8), (self.end, 6), (self.fault, 4), (self.reset, 4), (self.note, 2)),
            *((self.lost, 3), (self.back, 3), (self.swapped, 2), (self.fabric, 1), (self.mig, 1)),
            *((self.down, 1), (self.reboot, 1), (self.mark, 1), (self.lift, 1)),
        )
        names, weights = zip(*events, strict=True)
        event = self.chance.choices(names, weights)[0]
        machine = self.chance.choices(list(self.machines.values()), WEIGHTS)[0]
        self.now += timedelta(minutes=self.chance.choice([1, 11, 40]))
        self.log.append(f"{event.__name__} {machine.name}")
        if not machine.in_contact:
            machine.in_contact = True
            contact_back(node_id=self.ids[machine.name], boot_id=machine.boot_id, now=self.now)
        before = self.held()
        event(machine)
        self.probe(machine)
        self.check_devices(before, event.__name__)
        known = self.held()
        run_round(self.now)
        start_due(config=CONFIG, now=self.now)
        self.check_starts(known)
        self.obey()
        self.check()

    # -- invariants --------------------------------------------------------------------------

    def held(self) -> dict[int, str]:
        return dict(Lease.objects.filter(released_at=None).values_list("pk", "device__uuid"))

    def boards(self) -> dict[str, Board]:
        return {u: b for one in self.machines.values() for u, b in one.found().items()}

    def check_devices(self, before: dict[int, str], event: str) -> None:
        """Each GPU in contact has the health of the model, and no lease has changed its GPU."""
        now_held = self.held()
        assert all(now_held[pk] == uuid for pk, uuid in before.items() if pk in now_held)
        if event in ("fault", "note", "lost", "back", "reset", "fabric", "mark", "lift", "mig"):
            assert now_held == before
        for machine in self.machines.values():
            if not machine.in_contact:
                continue
            rows = Device.objects.filter(node__name=machine.name, retired_at=None)
            stored = {row.uuid: row.healthy for row in rows}
            # New MIG instances may wait for a leaf while others of their type are missing.
            found = {
                uuid: one.is_in_service()
                for uuid, one in machine.found().items()
                if uuid in stored or uuid.startswith("GPU-")
            }
            assert {u: h for u, h in stored.items() if u in found} == found, self.log
            missing = stored.keys() - found.keys()
            assert not any(stored[uuid] for uuid in missing), self.log

    def check_starts(self, known: dict[int, str]) -> None:
        """New leases are on GPUs in service, or of canary jobs on GPUs that owe a test."""
        boards = self.boards()
        for lease in Lease.objects.filter(released_at=None).exclude(pk__in=known):
            machine = self.machines[lease.device.node.name]
            board = boards.get(lease.device.uuid)
            assert board is not None, (self.log, "started on a missing device")
            assert (machine.in_contact, machine.has_fabric) == (True, True), self.log
            is_test = CanaryRun.objects.filter(job_id=lease.job_id).exists()
            assert board.is_in_service() != is_test, self.log
            assert not is_test or (board.owes_test and not board.is_faulty and not board.marked)

    def check(self) -> None:
        assert violations() == (), self.log
        assert set(VcQuota.objects.values_list("chain", "level", "count")) == self.quotas
        leases = Lease.objects.filter(
            released_at=None, job__tenant__name__in=["vision", "language"]
        )
        for use in cluster_snapshot(ADMIN, now=self.now).virtual_clusters:
            if use.name == "canary":
                continue
            own = leases.filter(job__virtual_cluster__name=use.name)
            assert use.used == own.exclude(virtual_cell="").count() <= use.guarantee == 8
            assert use.borrowed == own.filter(virtual_cell="").count()
            assert min(use.lent, use.unhealthy, use.cordoned, use.idle) >= 0
            rest = use.guarantee - use.used - use.lent - use.unhealthy - use.cordoned
            assert use.idle == rest, (self.log, use)

    def finish(self) -> None:
        """End all jobs; then events, charges and leases add up."""
        for machine in self.machines.values():
            machine.in_contact = True
            contact_back(node_id=self.ids[machine.name], boot_id=machine.boot_id, now=self.now)
        self.now += timedelta(minutes=7)
        self.obey()
        for member in Member.objects.exclude(step__in=GONE):
            self.exit(member, 0)
        finish_ended(now=self.now)
        assert not self.held()
        for job in Job.objects.unscoped():
            check_events(job)
        sum_all_usage(now=self.now + timedelta(minutes=1))
        sums = UsageDay.objects.unscoped().aggregate(g=Sum("guaranteed"), b=Sum("borrowed"))
        total = (sums["g"] or 0.0) + (sums["b"] or 0.0)
        assert total == pytest.approx(self.charged), self.log


def check_events(job: Job) -> None:
    """The events of a job are in order, and lead through the table of states to its state."""
    events = list(JobEvent.objects.filter(job=job).order_by("id"))
    assert all(one.at <= two.at for one, two in pairwise(events))
    state = JobState.QUEUED
    for event in events:
        if event.kind in set(JobEventKind):
            state = next_state(state, JobEventKind(event.kind))
            assert event.state == state
    assert job.state == state


def play(seed: int) -> None:
    sequence = Sequence(seed)
    for _ in range(STEPS):
        sequence.step()
    sequence.finish()


@pytest.fixture
def cluster() -> None:
    make_two_tenants()
    Node.objects.update(contact="ready", state="ready", isolation_level="user")


@pytest.mark.parametrize("seed", range(10))
def test_quarantines_leases_and_charges_after_events_of_hardware(cluster: None, seed: int) -> None:
    play(seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10, 1010))
def test_a_thousand_sequences_with_jobs(cluster: None, seed: int) -> None:
    play(seed)


def test_the_model_owes_a_test_after_a_fault_that_a_reboot_has_cleared() -> None:
    machine = Machine("node-9")
    board = machine.boards[3]
    board.conditions.add(hardware.XID_HARDWARE)
    machine.observe(NOW)
    machine.reboot()
    machine.observe(NOW)

    assert (board.is_faulty, board.is_in_service()) == (False, False)
    board.tested("passed")
    assert board.is_in_service()
