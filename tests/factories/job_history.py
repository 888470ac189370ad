"""Jobs that ran and ended in several rounds."""

from datetime import timedelta

import pytest

from scheduling.core.lifecycle import JobState
from scheduling.jobs.models import Job
from scheduling.rounds.services import rounds
from scheduling.rounds.services.evidence import store_round
from scheduling.runs.services import attempts
from scheduling.storage.directory import DirectoryStorage
from tenants.roles import Role
from tessera import protocol
from tests.factories.attempts import members_of, run_members
from tests.factories.cluster import (
    NOW,
    OPPORTUNISTIC,
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.scheduling import CONFIG
from tests.factories.tenants import make_tenant


def seconds_after_now(seconds):
    return NOW + timedelta(seconds=seconds)


@pytest.fixture
def three_finished_jobs(tmp_path):
    """A long job holds the whole guarantee, and two short ones wait for it in turn."""
    make_cluster()
    make_priority_classes()
    make_virtual_cluster(cells=1)
    make_virtual_cluster("language-a", make_tenant("language", bob=Role.MEMBER))
    long, first, second = (make_job(worker={"devices": 8}) for _ in range(3))
    make_job(worker={"devices": 8}, **OPPORTUNISTIC)
    for job, begin, end in ((long, 0, 1000), (first, 1000, 1100), (second, 1100, 1200)):
        run_round_at(tmp_path, begin)
        run_members(job, seconds_after_now(begin))
        for member in members_of(job):
            record = protocol.ExitRecord(
                cause=protocol.CAUSE_EXITED,
                failure="",
                at=seconds_after_now(end).timestamp(),
                code=0,
            )
            attempts.mark_exited(member_id=member.pk, record=record, now=seconds_after_now(end))
        assert Job.objects.unscoped().get(pk=job.pk).state == JobState.SUCCEEDED
    return long, first, second


def run_round_at(data_dir, seconds):
    def store(number, reading, result):
        return store_round(
            storage=DirectoryStorage(data_dir), number=number, reading=reading, result=result
        )

    rounds.run_round(now=lambda: seconds_after_now(seconds), config=CONFIG, store=store)
