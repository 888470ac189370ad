"""The cluster's last day: shares of ten minutes, gaps where nothing is known."""

from datetime import UTC, datetime, timedelta

import pytest

from scheduling.clusters.models import Node
from scheduling.runs.models import Lease
from tests.factories.cluster import make_cluster, make_job, make_virtual_cluster
from tests.factories.running import run_attempt
from tests.factories.tenants import make_member, make_tenant, make_user, make_viewer
from workers.day import cluster_day, efficiency_now
from workers.models import GoodputSample, NodeTelemetry

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 3, 2, 9, 35, tzinfo=UTC)
SPAN = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


@pytest.fixture
def attempt():
    nodes = make_cluster(1)
    Node.objects.update(created_at=NOW - timedelta(days=3))
    make_virtual_cluster()
    return run_attempt(make_job(), nodes[0], now=NOW, devices=(0, 1))


def telemetry(attempt, at, values, span=600):
    node = attempt.members.get().node
    NodeTelemetry.objects.create(node=node, at=at, span_seconds=span, utilisation=values)


def sample(attempt, at, efficiency, *, devices=1, seconds=10.0):
    GoodputSample.objects.create(
        attempt=attempt,
        job=attempt.job,
        at=at,
        seconds=seconds,
        step=1,
        steps=1,
        samples=1,
        throughput=1,
        efficiency=efficiency,
        goodput=efficiency,
        devices=devices,
    )


def points(viewer, now=NOW):
    return {point.at: point for point in cluster_day(viewer, now=now)}


def test_a_day_is_144_spans_that_end_now(attempt):
    found = cluster_day(make_viewer("alice"), now=NOW)

    assert len(found) == 144
    assert found[-1].at == datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
    assert found[1].at - found[0].at == timedelta(minutes=10)


def test_devices_in_use_are_counted_by_the_time_they_were_held(attempt):
    Lease.objects.update(
        taken_at=SPAN + timedelta(minutes=5), released_at=SPAN + timedelta(minutes=20)
    )

    found = points(make_viewer("alice"))

    assert found[SPAN].in_use == pytest.approx(0.125)
    assert found[SPAN + timedelta(minutes=10)].in_use == pytest.approx(0.25)
    assert found[SPAN + timedelta(minutes=20)].in_use == 0


def test_before_there_was_a_node_nothing_is_known_of_what_was_in_use(attempt):
    Node.objects.update(created_at=SPAN + timedelta(minutes=5))
    Lease.objects.update(
        taken_at=SPAN + timedelta(minutes=5), released_at=SPAN + timedelta(minutes=20)
    )

    found = points(make_viewer("alice"))

    assert found[SPAN - timedelta(minutes=10)].in_use is None
    assert found[SPAN].in_use == pytest.approx(0.25)
    assert found[SPAN + timedelta(minutes=20)].in_use == 0


def test_what_a_node_did_that_is_gone_is_known(attempt):
    Node.objects.update(created_at=NOW)
    Lease.objects.update(taken_at=SPAN, released_at=SPAN + timedelta(minutes=10))

    found = points(make_viewer("alice"))

    assert found[SPAN].in_use == pytest.approx(0.25)
    assert found[SPAN + timedelta(minutes=10)].in_use == 0


def test_the_span_that_is_not_over_counts_what_has_passed(attempt):
    Lease.objects.update(taken_at=NOW - timedelta(minutes=30), released_at=None)

    assert points(make_viewer("alice"))[NOW - timedelta(minutes=5)].in_use == pytest.approx(0.25)


def test_utilisation_is_the_mean_of_devices_that_tell_and_gaps_stay_gaps(attempt):
    telemetry(attempt, SPAN, [0.2, None, 0.6])
    telemetry(attempt, SPAN + timedelta(minutes=12), [1.0], span=60)
    telemetry(attempt, SPAN + timedelta(minutes=3), [0.9], span=60)

    found = points(make_viewer("alice"))

    assert found[SPAN].utilisation == pytest.approx(0.4)
    assert found[SPAN + timedelta(minutes=10)].utilisation == pytest.approx(1.0)
    assert found[SPAN + timedelta(minutes=20)].utilisation is None


def test_efficiency_weighs_devices_and_seconds(attempt):
    sample(attempt, SPAN, 0.5, devices=3)
    sample(attempt, SPAN + timedelta(minutes=9, seconds=59), 0.9, devices=1)

    assert points(make_viewer("alice"))[SPAN].efficiency == pytest.approx(0.6)


def test_samples_of_other_tenants_are_not_counted(attempt):
    sample(attempt, NOW - timedelta(minutes=1), 0.5)
    make_member(make_tenant("speech"), make_user("sam"))

    assert efficiency_now(make_viewer("alice"), now=NOW) == pytest.approx(0.5)
    assert efficiency_now(make_viewer("sam"), now=NOW) is None
    last = max(points(make_viewer("sam")))
    assert points(make_viewer("sam"))[last].efficiency is None


def test_a_day_without_anything_is_empty():
    make_cluster(1)
    make_member(make_tenant("speech"), make_user("sam"))

    assert cluster_day(make_viewer("sam"), now=NOW) == ()


def test_a_day_is_read_in_few_queries(attempt, django_assert_max_num_queries):
    viewer = make_viewer("alice")

    with django_assert_max_num_queries(5):
        cluster_day(viewer, now=NOW)
