"""Pairs and turns on devices: simulated decisions equal those of live rounds on the same rows."""

from dataclasses import replace
from typing import Any

import pytest

from scheduling.clusters.models import ClusterRules, Device, VcQuota
from scheduling.core.sharing.hosts import Consent, SharingMode
from scheduling.core.sharing.pairs import Paces
from scheduling.core.simulation import SimulatedCluster, SimulationSettings
from scheduling.core.simulation.guests import GuestRules
from scheduling.rounds.snapshot import take_snapshot
from scheduling.rounds.snapshot.guests import LEAST_HEADROOM, PEAK_FACTOR
from scheduling.runs.models import Lease, PairPace
from tenants.roles import Role
from tessera.run_spec import make_run_id
from tests.factories.cluster import (
    NOW,
    job_document,
    make_job,
    make_virtual_cluster,
)
from tests.factories.peers import OFFER
from tests.factories.scheduling import CONFIG
from tests.factories.tenants import make_tenant
from tests.support.simulated_rounds import RandomCase, summary
from workers.services.shared_devices import keep_shared
from workers.transports.base import CompanyReading, DeviceReading, GuestReading

pytestmark = pytest.mark.django_db

POLICIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("gavel", {"sharing": True, "quantum": 120.0}),
    ("gavel", {"sharing": True, "objective": "throughput"}),
    ("gandiva", {"packing": True}),
    ("gandiva", {"turns": "device"}),
)
PACES = (Paces(0.9, 0.8), Paces(0.5, 0.4))
MOST_ROUNDS = 24
MEMORY_FREE = (8 << 30) - LEAST_HEADROOM - int(PEAK_FACTOR * (2 << 30))
"""Memory of a device of 8 GiB beside a job with 2 GiB."""


class PairCase(RandomCase):
    """A cluster whose jobs may share devices, in the database and simulated."""

    def __init__(self, seed):
        self.paces = PACES[seed % 2]
        self.pairs = 0
        super().__init__(seed)
        ClusterRules.objects.create(id=1, sharing=True)
        Device.objects.update(sharing_modes=["slot"])
        for holder in ("one", "two"):
            for other in ("one", "two"):
                PairPace.objects.create(
                    holder=self._application(holder),
                    guest=self._application(other),
                    device_type="a",
                    # Together they look better than they are, so that some are separated.
                    holder_pace=0.9,
                    guest_pace=0.8,
                    observations=1_000.0,
                    at=NOW,
                )
        snapshot = take_snapshot(number=1, now=NOW, config=CONFIG).snapshot
        offer = replace(OFFER, mode=SharingMode.SLOT, consent=Consent.SAME_TENANT)
        offer = replace(offer, memory_free=MEMORY_FREE, steady_seconds=0.0)
        self.world = SimulatedCluster(
            snapshot,
            self.durations.__getitem__,
            settings=SimulationSettings(grace=30.0, tick=60.0),
            guests=GuestRules(
                offer=lambda job, _address: offer if job in snapshot.peer_needs else None,
                peer_needs=snapshot.peer_needs,
                pair_paces=snapshot.pair_paces,
                paces=lambda _holder, _other, _type: self.paces,
            ),
        )

    def _application(self, name):
        return f"{self.tenant.pk}:label:{name}"

    def _make_virtual_clusters(self):
        policy, args = self.chance.choice(POLICIES)
        self.tenant = make_tenant("vision", alice=Role.MEMBER)
        vc = make_virtual_cluster(
            "vision-a", self.tenant, cells=0, policy=policy, policy_args=args
        )
        level = self.chance.choice(["a-node", "a-socket"])
        VcQuota.objects.create(virtual_cluster=vc, chain="a-node", level=level, count=1)
        for _ in range(self.chance.randint(6, 14)):
            self._submit()

    def _submit(self):
        consent = self.chance.choice(["same-tenant", "same-tenant", "same-tenant", "none"])
        document = job_document(
            virtual_cluster="vision-a",
            worker={"devices": self.chance.choice([1, 1, 1, 1, 2]), "memory": "2GiB"},
            sharing={"guests": consent},
            labels={"application": self.chance.choice(["one", "two"])},
        )
        job = make_job("alice", document)
        self.durations[job.pk] = float(self.chance.randint(100, 3000))

    def _faults(self):
        return []

    def live_decision(self):
        self._report()
        decision = super().live_decision()
        self.pairs += len(decision.peers) if decision is not None else 0
        return decision

    def may_start(self, job):
        """Jobs beside former holders have to leave first."""
        mine = Lease.objects.filter(job=job, kind="using", released_at=None)
        beside = Lease.objects.filter(kind="guest", released_at=None)
        there = beside.filter(device_id__in=mine.values("device_id"))
        # A former attempt of the same job is a former holder, too.
        return not there.exclude(beside__in=mine.values("member_id")).exists()

    def _report(self):
        """Let the nodes report the paces of the running pairs."""
        for lease in Lease.objects.filter(is_peer=True, released_at=None).select_related(
            "attempt", "member", "device", "beside__attempt"
        ):
            holder, member = lease.beside, lease.member
            assert holder is not None
            run_id = make_run_id(lease.attempt.uid, member.role, member.rank)
            company = CompanyReading(
                holder_run_id=make_run_id(holder.attempt.uid, holder.role, holder.rank),
                loss=1.0 - self.paces.holder,
                guests=(GuestReading(run_id=run_id, duty=self.paces.guest),),
            )
            reading = DeviceReading(index=lease.device.index, company=company)
            keep_shared(node_id=lease.device.node_id, devices=[reading], now=self.now)
            PairPace.objects.update(holder_pace=0.9, guest_pace=0.8, observations=1_000.0)

    def advance(self, due):
        leaving = {one.job.id for one in self.world.guests.values() if one.job.leaving}
        super().advance(due)
        for job_id in sorted(leaving & self.world.waiting.keys()):
            self._exit(job_id, "stopped")


def summary_of_pairs(result):
    """What a round does, with seats beside holders, ends of pairs, and promotions."""
    if result is None:
        return (*summary(None), (), (), ())
    peers = tuple(
        (one.seat.job_id, one.seat.holder, one.seat.slot, one.turn_seconds) for one in result.peers
    )
    return (*summary(result), peers, result.guest_leaves, result.promotions)


def check(seed):
    case = PairCase(seed)
    for _ in range(MOST_ROUNDS):
        live = case.live_decision()
        simulated = case.world.decide()
        at = case.world.now - NOW.timestamp()
        assert summary_of_pairs(simulated) == summary_of_pairs(live), (seed, at)
        assert case.world.record.faults == []
        due = case.world.next_time()
        if due is None:
            break
        case.advance(due)
    return case.pairs


@pytest.mark.parametrize("seed", range(16))
def test_simulated_pairs_decide_as_live_rounds_on_the_same_rows(seed):
    check(seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(16, 76))
def test_more_simulated_pairs_decide_as_live_rounds(seed):
    check(seed)
