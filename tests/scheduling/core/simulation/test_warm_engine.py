"""The engine of a simulation decides as one restored from the snapshot, as in live rounds."""

import random
from dataclasses import replace
from typing import Any

import pytest

from scheduling.core.cells import Quota, VcSpec
from scheduling.core.policy_interface import Terms
from scheduling.core.round.decide import decide
from scheduling.core.simulation import (
    ClusterChange,
    HealthChange,
    Overhead,
    SimulatedCluster,
    SimulationSettings,
)
from scheduling.core.values import JobFacts
from tests.factories.rounds import LANGUAGE, NOW, SPEC, VISION, cluster_snapshot, queued_job

POLICIES = ("fifo", "fifo", "fifo", "srtf", "las", "fair", "capacity", "tiresias", "tessera")
MOST_ROUNDS = 60


def _share(level):
    return VcSpec(quotas=(Quota(chain="a-node", level=level, count=1),))


def random_job(chance, number):
    """A job that comes early and borrows, or later and is owed its devices."""
    borrow = chance.random() < 0.5
    vc = chance.choice([VISION, LANGUAGE])
    job = queued_job(
        number,
        devices=chance.choice([1, 2, 2, 4, 4, 8]),
        count=chance.choice([1, 1, 1, 2]),
        vc=vc,
        priority=chance.choice([0, 10, 10, 100]),
        borrow=borrow,
    )
    at = NOW + chance.choice([0.0, chance.uniform(0, 600), chance.uniform(400, 3000)])
    return replace(job, submitted=at, owner=chance.randint(1, 2))


def random_events(chance):
    """A node fails and is repaired, or a guarantee becomes smaller and returns."""
    node = chance.choice(["node-1", "node-2", "node-3"])
    at = NOW + chance.uniform(100, 1500)
    base = cluster_snapshot()
    smaller = {**SPEC.virtual_clusters, "language-a": _share("a-socket")}
    same: dict[str, Any] = {
        "topology_version": 1,
        "vcs": base.vcs,
        "nodes": base.nodes,
        "bad_devices": frozenset(),
        "device_memory": {},
    }
    events = {
        "none": [],
        "node": [
            HealthChange(at=at, node=node, healthy=False),
            HealthChange(at=at + 900.0, node=node, healthy=True),
        ],
        "device": [HealthChange(at=at, node=node, device=chance.randint(0, 7), healthy=False)],
        "guarantee": [
            ClusterChange(at=at, spec=replace(SPEC, virtual_clusters=smaller), **same),
            ClusterChange(at=at + 900.0, spec=SPEC, **same),
        ],
    }
    return events[chance.choice(sorted(events))]


def random_cluster(seed):
    chance = random.Random(seed)
    jobs = [random_job(chance, number) for number in range(1, chance.randint(8, 24))]
    vcs = tuple(
        replace(
            vc,
            policy=chance.choice(POLICIES),
            max_opportunistic_devices=chance.choice([None, None, 6]),
        )
        for vc in (LANGUAGE, VISION)
    )
    known = {
        job.id: JobFacts(
            terms=Terms(tenant=job.tenant, estimate=float(chance.randint(50, 4000))),
            asked=job.demand,
        )
        for job in jobs
    }
    works = {job.id: chance.uniform(20, 3000) for job in jobs}
    first = [job for job in jobs if job.submitted <= NOW]
    return SimulatedCluster(
        cluster_snapshot(*first, vcs=vcs, known=known, spec=SPEC),
        works.__getitem__,
        settings=SimulationSettings(grace=30.0),
        arrivals=[(job, known[job.id]) for job in jobs if job.submitted > NOW],
        events=random_events(chance),
        overhead=lambda _job: Overhead(start=5.0, restart=20.0, checkpoint=300.0),
    )


def check(seed):
    world = random_cluster(seed)
    for _ in range(MOST_ROUNDS):
        restored = decide(world.snapshot(), trials=0, explain=())
        warm = world.decide()
        assert warm.starts == restored.starts, seed
        assert warm.preemptions == restored.preemptions, seed
        assert warm.rebindings == restored.rebindings, seed
        assert warm.rejections == restored.rejections, seed
        assert warm.policy_states == restored.policy_states, seed
        due = world.next_time()
        if due is None:
            return
        world.advance(due)


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_a_kept_engine_decides_as_a_restored_one(first):
    for seed in range(first, first + 10):
        check(seed)


@pytest.mark.soak
def test_a_kept_engine_decides_as_a_restored_one_in_many_clusters():
    for seed in range(1000, 3000):
        check(seed)
