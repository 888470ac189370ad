"""Random events of hardware against a model of the machines, on nodes with several types."""

import random
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import pytest

from scheduling.clusters.models import Device, Node, Topology, VcQuota, VirtualCluster
from scheduling.clusters.queries.virtual_clusters import spec_in_force
from scheduling.clusters.services.node_contact import record_probe
from scheduling.core.cells import feasible
from scheduling.maintenance.invariants import violations
from scheduling.runs.models import Lease, Member
from scheduling.runs.services import attempts
from scheduling.topology.current import current_topology
from tessera import hardware
from tessera.hardware import Condition
from tessera.inventory import Device as Found
from tessera.inventory import Inventory
from tests.factories.scheduling import NOW, end, make_two_tenants, run_round, submit

pytestmark = pytest.mark.django_db

DISPLAY = "DGX-Display"
SLOTS = ("A100", "A100", "T4", DISPLAY, "A100", "A100", "T4")
"""Model in each slot, four of each socket; the indices of a type have gaps."""
CHAINS = {"A100-node", "T4-node", "DGX-Display-node"}
EVENTS = ("lost", "back", "moved", "swapped", "xid", "hang", "submit", "end")
STEPS = 10


@dataclass
class Machine:
    """What is true on a node: boards by slot, faults, and whether the driver hangs."""

    name: str
    boards: dict[int, str] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)
    away: list[str] = field(default_factory=list)
    xids: set[str] = field(default_factory=set)
    hangs: bool = False
    last: list[Found] = field(default_factory=list)
    fresh: Any = field(default_factory=count)

    def __post_init__(self) -> None:
        for slot, model in enumerate(SLOTS):
            self.boards[slot] = self.make(model)

    def make(self, model: str) -> str:
        uuid = f"GPU-{self.name}-{next(self.fresh)}"
        self.models[uuid] = model
        return uuid

    def happen(self, event: str, chance: random.Random) -> None:
        slot = chance.choice(sorted(self.boards) or [0])
        empty = sorted(set(range(len(SLOTS))) - self.boards.keys())
        if event == "lost" and len(self.boards) > 1:
            self.away.append(self.boards.pop(slot))
        elif event == "back" and self.away and empty:
            own = [one for one in empty if SLOTS[one] == self.models[self.away[0]]]
            self.boards[(own or empty)[0]] = self.away.pop(0)
        elif event == "moved":
            alike = [one for one in self.boards if SLOTS[one] == SLOTS[slot]]
            other = chance.choice(alike)
            pair = self.boards[slot], self.boards[other]
            self.boards[other], self.boards[slot] = pair
        elif event == "swapped" and self.boards:
            self.boards[slot] = self.make(self.models[self.boards[slot]])
        elif event == "xid":
            self.xids ^= {self.boards[slot]}
        elif event == "hang":
            self.hangs = not self.hangs

    def report(self) -> Inventory:
        """The inventory of a probe; a hanging driver repeats the last reading."""
        if not self.hangs:
            self.last = [
                Found(
                    index=index,
                    type=self.models[self.boards[slot]],
                    path=[slot // 4],
                    uuid=self.boards[slot],
                    pci_address=f"0000:{slot:02x}:00.0",
                    memory_bytes=(4 if SLOTS[slot] == DISPLAY else 32) << 30,
                )
                for index, slot in enumerate(sorted(self.boards))
            ]
        faulty = [Condition(hardware.XID_HARDWARE, uuid=uuid) for uuid in sorted(self.xids)]
        hung = [Condition(hardware.DRIVER_HUNG)] if self.hangs else []
        return Inventory(
            devices=self.last,
            levels=["node", "socket", "device"],
            cpus=32,
            memory_bytes=64 << 30,
            conditions=[*faulty, *hung],
        )

    @property
    def sound(self) -> set[str]:
        """The GPUs that work."""
        return set(self.boards.values()) - self.xids


def probe(machine: Machine) -> None:
    record_probe(
        node_id=Node.objects.get(name=machine.name).pk,
        inventory=machine.report().to_json(),
        has_docker=False,
        cpus=32.0,
        memory_bytes=64 << 30,
        now=NOW,
    )


def rows_of(name: str) -> dict[str, tuple[str, str, bool]]:
    found = Device.objects.filter(node__name=name, retired_at=None)
    return {d.uuid: (d.address, d.chain, d.healthy) for d in found}


def held() -> dict[int, str]:
    leases = Lease.objects.filter(released_at=None)
    return dict(leases.values_list("pk", "device__uuid"))


def check_rows(machine: Machine, before: dict[int, str]) -> None:
    """Every GPU that works has a healthy row, unless a job holds the leaf of its place."""
    rows = rows_of(machine.name)
    healthy = {uuid for uuid, (_, _, is_healthy) in rows.items() if is_healthy}
    assert healthy <= machine.sound
    missing_held = [
        uuid for uuid in before.values() if uuid in rows and uuid not in machine.boards.values()
    ]
    assert len(machine.sound - healthy) <= len(missing_held)
    assert {chain for _, chain, _ in rows.values()} == CHAINS


def run_waiting_members() -> None:
    """The nodes report that all that was placed runs."""
    pks = list(Member.objects.filter(step="waiting").values_list("pk", flat=True))
    attempts.mark_preparing(member_ids=pks, now=NOW)
    for pk in pks:
        attempts.mark_prepared(member_id=pk, now=NOW)
    for pk in pks:
        attempts.mark_running(member_id=pk, pid=100, boot_id="", started_at=NOW, now=NOW)


def play(seed: int) -> None:
    chance = random.Random(seed)
    vc = VirtualCluster.objects.unscoped().get(name="vision-a")
    machines = [Machine("node-1"), Machine("node-2")]
    for machine in machines:
        probe(machine)
    for chain in ("A100-node", "T4-node"):
        VcQuota.objects.create(virtual_cluster=vc, chain=chain, level=chain, count=1)
    quotas = set(VcQuota.objects.values_list("chain", "level", "count"))
    running: list[Any] = []
    for _ in range(STEPS):
        event, machine = chance.choice(EVENTS), chance.choice(machines)
        (other,) = (one for one in machines if one is not machine)
        untouched, leases = rows_of(other.name), held()
        if event == "submit":
            kind = chance.choice(["A100", "T4", ""])
            worker = {"device_types": [kind]} if kind else {}
            borrows = {"class": "opportunistic"} if chance.random() < 0.5 or not kind else {}
            running.append(submit(devices=chance.randint(1, 2), worker=worker, **borrows))
        elif event == "end" and running:
            job = running.pop(chance.randrange(len(running)))
            if Lease.objects.filter(released_at=None, job=job).exists():
                end(job)
        else:
            machine.happen(event, chance)
        probe(machine)

        assert rows_of(other.name) == untouched
        now_held = held()
        assert all(leases[pk] == uuid for pk, uuid in now_held.items() if pk in leases)
        assert event == "end" or now_held.keys() >= leases.keys()
        assert set(VcQuota.objects.values_list("chain", "level", "count")) == quotas
        assert feasible(spec_in_force(current_topology())).ok
        if not machine.hangs:
            check_rows(machine, held())

        known = held()
        run_round()
        begun = {uuid for pk, uuid in held().items() if pk not in known}
        works = {uuid for one in machines if not one.hangs for uuid in one.sound}
        shows = {uuid for one in machines for uuid in one.models if one.models[uuid] == DISPLAY}
        assert begun <= works - shows
        run_waiting_members()
    assert violations() == ()


@pytest.fixture
def cluster() -> None:
    make_two_tenants()
    for model in (VcQuota, Topology, Device):
        model.objects.all().delete()
    Node.objects.filter(name="node-3").delete()
    Node.objects.update(state="ready", contact="ready")


@pytest.mark.parametrize("seed", range(8))
def test_events_of_hardware_change_only_their_own_device(cluster: None, seed: int) -> None:
    play(seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(8, 1008))
def test_a_thousand_sequences_of_events(cluster: None, seed: int) -> None:
    play(seed)


def test_the_model_repeats_the_last_reading_while_the_driver_hangs() -> None:
    machine = Machine("x")
    before = machine.report()
    machine.happen("lost", random.Random(0))
    machine.hangs = True

    assert machine.report() == replace(before, conditions=[Condition(hardware.DRIVER_HUNG)])
