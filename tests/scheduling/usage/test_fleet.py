"""Samples of the fleet in intervals, their retention, and what each viewer sees of them."""

from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from scheduling.clusters.models import Node
from scheduling.core.fleet_history import STATES
from scheduling.enums import NodeState, PreemptionCause
from scheduling.jobs.models import Job
from scheduling.runs.models import Attempt, Preemption
from scheduling.usage.models import FleetInterval
from scheduling.usage.queries.fleet import (
    OTHERS,
    FleetHistory,
    FleetPart,
    FleetRange,
    fleet_history,
    node_spells,
    preemption_counts,
    share_points,
    wait_points,
)
from scheduling.usage.services.fleet import AGES, prune_fleet, record_sample
from tenants.errors import NotFoundError
from tenants.models import User
from tenants.selectors import viewer_of
from tests.support.cluster_pages import Stage, make_stage
from tests.support.interleaving import before_query

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)
ALL = tuple(FleetPart)


@pytest.fixture
def stage() -> Stage:
    return make_stage(3)


def seen_by(name: str, now: datetime, wanted: FleetRange = FleetRange.DAY) -> FleetHistory:
    return fleet_history(viewer_of(User.objects.get(username=name)), wanted, ALL, now=now)


def started(job: Job, at: datetime, wait: float) -> None:
    Job.objects.unscoped().filter(pk=job.pk).update(
        first_started_at=at, submitted_at=at - timedelta(seconds=wait)
    )


def preempted(job: Job, for_job: Job | None, at: datetime) -> None:
    Preemption.objects.create(
        attempt=Attempt.objects.get(job=job),
        job=job,
        for_job=for_job,
        cause=PreemptionCause.INTER_VC if for_job else PreemptionCause.DRAIN,
        rule="",
        grace_seconds=30,
        asked_at=at,
    )


def test_a_sample_is_added_to_an_interval_of_each_length(stage: Stage) -> None:
    now = datetime(2026, 11, 23, 8, 5, tzinfo=UTC)
    started(stage.running, now - timedelta(seconds=30), 90.0)
    started(stage.foreign, now - timedelta(days=3), 5.0)
    first = stage.nodes[0]

    assert record_sample(now=now, busy={first.pk: [0.5, None, 0.25]})
    assert not record_sample(now=now + timedelta(seconds=5), busy={})
    assert record_sample(now=now + MINUTE, busy={first.pk: [0.25, 0.5, 0.5]})

    rows = FleetInterval.objects.order_by("span_seconds")
    assert [(row.span_seconds, row.samples) for row in rows] == [(span, 2) for span in AGES]
    assert {row.until for row in rows} == {now + MINUTE}
    (one,) = seen_by("root", now + MINUTE).intervals
    assert one.totals.nodes[first.name] == (2.0, 5, 4, 16, 0)
    assert one.totals.nodes[stage.nodes[1].name].held == 8
    (point,) = wait_points(seen_by("root", now + MINUTE))
    assert point.started == 1
    assert list(point.quantiles) == pytest.approx([90.0] * 3, rel=0.09)
    assert (point.queued, point.queued_devices) == (1.0, stage.waiting.devices)


def test_starts_during_an_outage_of_the_task_are_caught_up(stage: Stage) -> None:
    now = datetime(2026, 11, 23, 8, 0, tzinfo=UTC)
    record_sample(now=now - timedelta(hours=5), busy={})
    started(stage.running, now - timedelta(hours=3), 600.0)
    started(stage.foreign, now - timedelta(hours=6), 600.0)

    record_sample(now=now, busy={})
    record_sample(now=now + MINUTE, busy={})

    points = wait_points(seen_by("root", now + MINUTE))
    assert [point.started for point in points] == [0, 1]


def test_members_see_only_their_own_virtual_clusters(stage: Stage) -> None:
    now = timezone.now()
    started(stage.foreign, now - timedelta(seconds=10), 60.0)
    preempted(stage.running, stage.foreign, now - timedelta(seconds=5))
    preempted(stage.foreign, None, now - timedelta(seconds=4))
    record_sample(now=now, busy={})
    vision, language = stage.vision_a.pk, stage.language_a.pk

    alice, bob, root = (seen_by(name, now) for name in ("alice", "bob", "root"))

    assert dict(alice.names) == {vision: "vision-a"}
    assert set(alice.intervals[0].totals.virtual_clusters) == {vision}
    assert alice.intervals[0].totals.waits == {}
    assert set(bob.intervals[0].totals.waits) == {language}
    assert preemption_counts(alice) == {(vision, OTHERS, "inter-vc"): 1}
    assert preemption_counts(bob) == {(OTHERS, language, "inter-vc"): 1, (language, 0, "drain"): 1}
    assert preemption_counts(root) == {
        (vision, language, "inter-vc"): 1,
        (language, 0, "drain"): 1,
    }
    (mine,) = share_points(alice)
    (all_,) = share_points(root)
    assert mine.used + mine.borrowed == 2.0
    assert all_.used + all_.borrowed == 6.0
    with pytest.raises(NotFoundError):
        fleet_history(
            viewer_of(User.objects.get(username="alice")),
            FleetRange.DAY,
            ALL,
            now=now,
            virtual_cluster="language-a",
        )


def test_spells_of_a_node_join_equal_neighbours(stage: Stage) -> None:
    begin = datetime(2026, 11, 23, 8, 0, tzinfo=UTC)
    name = stage.nodes[0].name
    for quarter, state in enumerate(("ready", "down", "down", "cordoned", "ready")):
        Node.objects.filter(name=name).update(
            state=state, contact=NodeState.DOWN if state == "down" else NodeState.READY
        )
        record_sample(now=begin + quarter * 15 * MINUTE, busy={})

    spells = node_spells(seen_by("root", begin + 61 * MINUTE))

    assert [(one.node, STATES[one.state], one.since, one.until) for one in spells] == [
        (name, "down", begin + 15 * MINUTE, begin + 45 * MINUTE),
        (name, "cordoned", begin + 45 * MINUTE, begin + 60 * MINUTE),
    ]


def test_old_intervals_are_pruned_by_their_length(stage: Stage) -> None:
    now = datetime(2026, 11, 23, 8, 0, tzinfo=UTC)
    for days in (500, 20, 3, 0):
        record_sample(now=now - timedelta(days=days), busy={})

    assert prune_fleet(age=timedelta(days=400), now=now) == 4 + 2 + 1
    assert prune_fleet(age=None, now=now) == 0

    left = FleetInterval.objects.order_by("span_seconds", "at").values_list("span_seconds", "at")
    assert [span for span, _ in left] == [900, *[7200] * 2, *[28_800] * 3, *[86_400] * 3]


def test_a_sample_that_another_process_overtook_is_not_added(
    stage: Stage,
) -> None:
    now = datetime(2026, 11, 23, 8, 0, tzinfo=UTC)
    overtake = before_query(
        'FROM "scheduling_fragmentationforecast"',
        lambda: FleetInterval.objects.create(span_seconds=900, at=now, until=now, samples=1),
    )
    with overtake:
        assert not record_sample(now=now, busy={})

    assert list(FleetInterval.objects.values_list("span_seconds", "samples")) == [(900, 1)]
