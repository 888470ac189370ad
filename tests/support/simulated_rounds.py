"""Random clusters, jobs and faults in the database and simulated, driven by the same events."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

from scheduling.clusters.models import Node, VcQuota
from scheduling.core.simulation import HealthChange, SimulatedCluster, SimulationSettings
from scheduling.jobs.models import Job
from scheduling.rounds.services import rounds
from scheduling.rounds.snapshot import take_snapshot
from scheduling.runs.models import Member
from scheduling.runs.services import attempts
from tenants.roles import Role
from tessera import protocol
from tests.factories.attempts import run_members
from tests.factories.cluster import (
    NOW,
    OPPORTUNISTIC,
    job_document,
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.scheduling import CONFIG
from tests.factories.tenants import make_tenant

POLICIES: tuple[tuple[str, dict[str, bool]], ...] = (
    ("fifo", {}), ("fifo", {}), ("fifo", {"backfill": False}), ("srtf", {}), ("las", {}),
    ("fair", {}), ("capacity", {}), ("backfill", {}), ("tessera", {}),
)  # fmt: skip
EXTRAS: tuple[dict[str, Any], ...] = (
    {}, {"priority": "prod"}, OPPORTUNISTIC, OPPORTUNISTIC, {"max_duration": 3600},
)  # fmt: skip


class RandomCase:
    """A cluster in the database and its simulation, driven by the same events."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.durations: dict[int, float] = {}
        self.nodes = make_cluster(self.chance.choice([2, 3, 4]))
        make_priority_classes()
        self._make_virtual_clusters()
        for _ in range(self.chance.randint(4, 10)):
            self._submit()
        faults = self._faults()
        snapshot = take_snapshot(number=1, now=NOW, config=CONFIG).snapshot
        self.world = SimulatedCluster(
            snapshot,
            self.durations.__getitem__,
            settings=SimulationSettings(grace=30.0, tick=300.0),
            events=faults,
        )
        self.faults: dict[float, list[HealthChange]] = {event.at: [] for event in faults}
        for event in faults:
            self.faults[event.at].append(event)

    @property
    def now(self):
        return datetime.fromtimestamp(self.world.now, tz=UTC)

    def _make_virtual_clusters(self):
        for name, tenant, person in (
            ("vision-a", "vision", "alice"),
            ("language-a", "language", "bob"),
        ):
            policy, args = self.chance.choice(POLICIES)
            vc = make_virtual_cluster(
                name,
                make_tenant(tenant, **{person: Role.MEMBER}),
                cells=0,
                policy=policy,
                policy_args=args,
                max_devices_per_user=self.chance.choice([None, None, None, 6]),
                max_opportunistic_devices=self.chance.choice([None, None, 4]),
            )
            level = self.chance.choice(["a-node", "a-node", "a-socket"])
            VcQuota.objects.create(virtual_cluster=vc, chain="a-node", level=level, count=1)

    def _submit(self):
        person, vc = self.chance.choice([("alice", "vision-a"), ("bob", "language-a")])
        extra = self.chance.choice(EXTRAS)
        worker = {
            "devices": self.chance.choice([1, 2, 4, 4, 8]),
            "instances": self.chance.choice([1, 1, 1, 2]),
        }
        job = make_job(person, job_document(virtual_cluster=vc, worker=worker, **extra))
        if self.chance.random() < 0.5:
            at = NOW + timedelta(seconds=self.chance.randint(1, 2000))
            Job.objects.unscoped().filter(pk=job.pk).update(not_before=at)
        self.durations[job.pk] = float(self.chance.randint(20, 3000))

    def _faults(self):
        if self.chance.random() < 0.5:
            return []
        node, at = self.chance.choice(self.nodes).name, NOW.timestamp() + 500.5
        return [
            HealthChange(at=at, node=node, healthy=False),
            HealthChange(at=at + 700.25, node=node, healthy=True),
        ]

    def live_decision(self):
        """The decision of a live round; its starts run at once."""
        decided = []

        def store(_number, _reading, result):
            decided.append(result)
            return "", "", 0

        rounds.run_round(
            now=lambda: self.now,
            config=CONFIG,
            store=store,
        )
        for job in Job.objects.unscoped().filter(state="admitted"):
            if self.may_start(job):
                run_members(job, self.now)
        return decided[0] if decided else None

    def may_start(self, job):
        """Whether the devices of a placed job are free."""
        return True

    def advance(self, due):
        """Advance the simulation, and report the same ends to the database."""
        leaving = {job.id for job in self.world.holding.values() if job.leaving}
        ended = set(self.world.record.ends)
        for event in self.faults.get(due, ()):
            contact = "ready" if event.healthy else "down"
            Node.objects.filter(name=event.node).update(contact=contact)
        failed = dict(self.world.record.failures)
        self.world.advance(due)
        for job_id in set(self.world.record.ends) - ended:
            self._exit(job_id, protocol.CAUSE_EXITED)
        interrupted = {
            job_id
            for job_id, count in self.world.record.failures.items()
            if count > failed.get(job_id, 0)
        }
        for job_id in interrupted:
            self._lose(job_id)
        for job_id in sorted((leaving & self.world.waiting.keys()) - interrupted):
            self._exit(job_id, protocol.CAUSE_STOPPED)

    def _members(self, job_id):
        return Member.objects.filter(attempt__job=job_id, attempt__ended_at=None)

    def _exit(self, job_id, cause):
        record = protocol.ExitRecord(cause=cause, failure="", at=self.world.now, code=0)
        for member in self._members(job_id):
            attempts.mark_exited(member_id=member.pk, record=record, now=self.now)

    def _lose(self, job_id):
        down = set(Node.objects.filter(contact="down").values_list("pk", flat=True))
        for member in self._members(job_id):
            if member.node_id in down:
                attempts.mark_lost(member_id=member.pk, message="down", now=self.now)
        self._exit(job_id, protocol.CAUSE_STOPPED)


def summary(result):
    """What a round does: starts with their devices, preemptions and rejections."""
    if result is None:
        return (), (), ()
    return (
        tuple((start.job_id, start.demand, start.members) for start in result.starts),
        tuple((one.job_id, one.for_job, one.cause) for one in result.preemptions),
        tuple(one.job_id for one in result.rejections),
    )
