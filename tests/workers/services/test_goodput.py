"""Samples of goodput: summed over ranks, exactly once."""

import math
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from scheduling.jobs.models import Job
from scheduling.runs.models import AttemptProgress, Member
from tests.factories.cluster import (
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.scheduling import run_round
from workers.models import GoodputSample, LogStream, MetricSeries
from workers.services.dispatch import MemberRef, rank_of
from workers.services.goodput import add_progress
from workers.services.logs import close_logs, keep_log
from workers.services.node_reports import Removed
from workers.services.points import PointBatch, Sample, SeriesKey
from workers.services.reports import RankProgress

pytestmark = pytest.mark.django_db
AT = datetime(2026, 3, 2, 9, 30, 5, tzinfo=UTC)


@pytest.fixture
def ranks(now: datetime) -> list[MemberRef]:
    """The two ranks of a gang."""
    make_cluster()
    make_priority_classes()
    make_virtual_cluster(cells=2)
    make_job(worker={"instances": 2, "devices": 8})
    run_round(now)
    members = Member.objects.select_related("attempt__job").order_by("node_rank")
    return [rank_of(member) for member in members]


def progress(**changes: object) -> RankProgress:
    fields: dict[str, object] = {
        "seconds": 5.0,
        "step": 10,
        "steps": 5,
        "samples": 40.0,
        "step_seconds": 1.0,
        "loss": 0.5,
        "reports_end": 100,
    }
    return RankProgress(**{**fields, **changes})  # type: ignore[arg-type]


def test_the_ranks_of_a_gang_meet_in_one_sample(ranks: list[MemberRef]) -> None:
    add_progress(rank=ranks[1], progress=progress(step=11, loss=9.0, samples=60.0), at=AT)
    add_progress(rank=ranks[0], progress=progress(), at=AT)

    (sample,) = GoodputSample.objects.all()
    assert sample.samples == 100.0
    assert sample.throughput == sample.goodput == pytest.approx(20.0)
    assert (sample.step, sample.steps, sample.loss) == (10, 5, 0.5)
    assert (sample.seconds, sample.efficiency, sample.devices) == (5.0, 1.0, 16)


def test_progress_that_is_told_again_is_not_counted_again(ranks: list[MemberRef]) -> None:
    add_progress(rank=ranks[0], progress=progress(), at=AT)

    add_progress(rank=ranks[0], progress=progress(), at=AT + timedelta(seconds=5))

    assert GoodputSample.objects.count() == 1
    assert LogStream.objects.get(member_id=ranks[0].member_id).reports_end == 100


def test_points_alone_are_stored_once_and_make_no_sample(ranks: list[MemberRef]) -> None:
    batch = PointBatch(series={SeriesKey(0, "accuracy"): [Sample(7, 1.0, math.nan, 0.5)]})
    alone = progress(seconds=0.0, steps=0, samples=0.0, points=batch, has_steps=False)

    add_progress(rank=ranks[0], progress=alone, at=AT)
    add_progress(rank=ranks[0], progress=alone, at=AT)

    assert MetricSeries.objects.get().count == 1
    assert not GoodputSample.objects.exists()
    assert not AttemptProgress.objects.filter(steps__gt=0).exists()


def test_a_closed_log_stays_as_it_is(ranks: list[MemberRef]) -> None:
    keep_log(ranks[0], first=0, end=10, closed=False)
    close_logs({ranks[0]: (0, 20), ranks[1]: (0, 0)})

    keep_log(ranks[0], first=0, end=5, closed=False)
    close_logs({ranks[0]: (0, 7)})

    first, second = LogStream.objects.order_by("member_id")
    assert (first.end, first.closed) == (20, True)
    assert (second.end, second.closed) == (0, True)


def test_the_first_report_of_a_removal_holds(ranks: list[MemberRef]) -> None:
    """A comparison that began before the removal does not know of the gap at the log's start."""
    removed = partial(Removed, node_id=ranks[0].node_id, rank=ranks[0], log_end=1014)

    Removed.write_all([removed(log_first=1000), removed(log_first=0)], AT)

    log = LogStream.objects.get(member_id=ranks[0].member_id)
    assert (log.first, log.end, log.closed) == (1000, 1014, True)


def test_goodput_is_throughput_times_efficiency_where_the_noise_is_known(
    ranks: list[MemberRef],
) -> None:
    Job.objects.unscoped().update(terms={"batch": [64, 256, 256]})
    told = progress(batch=128, noise=(1.0, 2.0))

    add_progress(rank=ranks[1], progress=progress(batch=128), at=AT)
    add_progress(rank=ranks[0], progress=told, at=AT)

    (sample,) = GoodputSample.objects.all()
    # (2 + 1) / (2 * 64/128 + 1) steps of the initial batch for 128/64 times its samples.
    assert sample.efficiency == pytest.approx(0.75)
    assert sample.goodput == pytest.approx(0.75 * sample.throughput) == pytest.approx(12.0)
    assert sample.batch == 128
    assert AttemptProgress.objects.get().noise_variance == 2.0


def test_sizes_of_parameters_are_those_of_the_first_rank(ranks: list[MemberRef]) -> None:
    add_progress(rank=ranks[1], progress=progress(parameters=(1, 2)), at=AT)
    add_progress(rank=ranks[0], progress=progress(parameters=(400, 520)), at=AT)
    later = progress(reports_end=200)
    add_progress(rank=ranks[0], progress=later, at=AT + timedelta(seconds=5))

    found = AttemptProgress.objects.get()
    assert (found.largest_parameter, found.parameter_bytes) == (400, 520)
