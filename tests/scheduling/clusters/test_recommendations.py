"""The shape that the past would have needed, out of runs within a window."""

from datetime import timedelta

import pytest

from scheduling.clusters.queries.recommendations import WINDOW, recommended_shape
from scheduling.clusters.queries.virtual_clusters import virtual_cluster_detail
from scheduling.runs.models import Attempt
from tenants.viewers import Viewer
from tests.factories.cluster import NOW, make_cluster, make_job, make_virtual_cluster
from tests.factories.running import run_attempt

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


def test_runs_count_as_far_as_they_lie_in_the_window_and_long_enough():
    (node,) = make_cluster(1)
    cluster = make_virtual_cluster("vision-a", cells=1)
    spans = [
        (NOW - 2 * HOUR, NOW - HOUR),  # whole: one hour
        (NOW - WINDOW - HOUR, NOW - WINDOW + 2 * HOUR),  # its last two hours
        (NOW - WINDOW - 2 * HOUR, NOW - WINDOW - HOUR),  # before the window
        (NOW - 3 * HOUR, None),  # still going: three hours
        (NOW - HOUR, NOW - HOUR + timedelta(seconds=59)),  # too short to say anything
    ]
    for began, ended in spans:
        attempt = run_attempt(make_job(), node, now=NOW, ended=True)
        Attempt.objects.filter(pk=attempt.pk).update(running_at=began, ended_at=ended)
    shape = virtual_cluster_detail(Viewer.system("tests"), "vision-a").shape

    first = recommended_shape(cluster.pk, shape, now=NOW)
    later = recommended_shape(cluster.pk, shape, now=NOW + HOUR)

    assert [row.device_hours for row in first.rows if row.gangs] == [pytest.approx(6.0)]
    assert [row.device_hours for row in later.rows if row.gangs] == [pytest.approx(6.0)]
    assert (first.attempts, first.is_partial) == (4, False)
