"""Nodes that nobody carries become suspect, by whoever looks; those of a slow service do not."""

from datetime import datetime, timedelta

import pytest

from scheduling.clusters.models import Node
from scheduling.core.lifecycle import JobState
from scheduling.jobs.models import Job
from scheduling.runs.models import Member
from scheduling.runs.services import attempts
from tests.factories.cluster import (
    NOW,
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.scheduling import run_round
from workers.conf import NODE_LEASE_SECONDS
from workers.models import NodeLease
from workers.services import node_leases
from workers.services.unattended import LAPSE_SECONDS, REASON, UnattendedWatch

pytestmark = pytest.mark.django_db
LEASE = timedelta(seconds=NODE_LEASE_SECONDS)


def claim(now: datetime = NOW) -> dict[int, int]:
    taken = node_leases.claim_nodes(owner="service", carried=(), now=now, lease=LEASE, fresh=LEASE)
    return {node_id: claim.epoch for node_id, claim in taken.items()}


def looks(watch: UnattendedWatch, begin: datetime, seconds: int) -> list[int]:
    """What became suspect while it looked every five seconds."""
    return [
        node_id
        for passed in range(0, seconds + 1, 5)
        for node_id in watch.look(
            now=begin + timedelta(seconds=passed), ticks=begin.timestamp() + passed
        )
    ]


def states() -> set[str]:
    return set(Node.objects.values_list("state", flat=True))


def test_nodes_without_a_service_become_suspect_with_the_reason() -> None:
    nodes = make_cluster()

    assert looks(UnattendedWatch(), NOW, 10) == [node.pk for node in nodes]
    assert states() == {"suspect"}
    assert set(Node.objects.values_list("state_reason", flat=True)) == {REASON}


def test_carried_nodes_stay_ready() -> None:
    make_cluster()
    claim()

    assert looks(UnattendedWatch(), NOW, 10) == []
    assert states() == {"ready"}


def test_a_lease_that_has_run_out_counts_after_some_seconds_only() -> None:
    make_cluster()
    claim()
    watch = UnattendedWatch()

    assert looks(watch, NOW + LEASE, int(LAPSE_SECONDS) - 5) == []
    assert len(looks(watch, NOW + LEASE + timedelta(seconds=LAPSE_SECONDS), 0)) == 3


def test_a_lease_that_ends_hours_from_now_carries_no_node() -> None:
    make_cluster()
    claim(NOW + timedelta(hours=2))

    assert len(looks(UnattendedWatch(), NOW, 10)) == 3


def test_a_service_that_renews_late_keeps_its_nodes() -> None:
    make_cluster()
    epochs, watch = claim(), UnattendedWatch()
    looks(watch, NOW + LEASE, 5)

    later = NOW + LEASE + timedelta(seconds=8)
    node_leases.hold(owner="service", epochs=epochs, now=later, lease=LEASE)

    assert looks(watch, later, 10) == []


def test_a_watch_that_stood_still_counts_anew() -> None:
    make_cluster()
    watch = UnattendedWatch()
    looks(watch, NOW, 5)

    hour = NOW + timedelta(hours=1)
    assert looks(watch, hour, 5) == []
    assert len(looks(watch, hour + timedelta(seconds=10), 0)) == 3


def test_a_service_that_wakes_has_lost_them_and_connects_anew() -> None:
    make_cluster()
    epochs = claim()
    later = NOW + LEASE
    looks(UnattendedWatch(), later, 10)

    held = node_leases.hold(owner="service", epochs=epochs, now=later, lease=LEASE)

    assert held == frozenset()
    again = claim(later + timedelta(seconds=10))
    assert again == {node_id: epoch + 2 for node_id, epoch in epochs.items()}


def test_a_service_that_claims_first_wins() -> None:
    make_cluster(nodes=1)
    watch = UnattendedWatch()
    looks(watch, NOW, 5)
    claim(NOW + timedelta(seconds=9))

    assert looks(watch, NOW + timedelta(seconds=10), 0) == []
    assert NodeLease.objects.get().owner == "service"


def test_jobs_there_wait_as_suspect() -> None:
    make_cluster()
    make_priority_classes()
    make_virtual_cluster(cells=3)
    make_job()
    Job.objects.unscoped().update(submitted_at=NOW)
    run_round()
    member = Member.objects.get()
    attempts.mark_preparing(member_ids=[member.pk], now=NOW)
    attempts.mark_prepared(member_id=member.pk, now=NOW)
    attempts.mark_running(member_id=member.pk, pid=1, boot_id="boot", now=NOW, started_at=NOW)

    looks(UnattendedWatch(), NOW, 10)

    assert Job.objects.unscoped().get().state == JobState.SUSPECT
