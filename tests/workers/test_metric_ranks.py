"""Mean and range over ranks: at common places, of finite values in force."""

import pytest

from scheduling.jobs.models import Job
from tenants.roles import Role
from tests.factories.cluster import make_job, make_shared_cluster
from tests.factories.metric_points import add_values, member_of_job
from tests.factories.tenants import make_viewer
from workers.metric_ranks import RankBand, band_of, broken_places
from workers.metrics import Axis, MetricCurve, Wanted, metric_curves, metrics_of_job

pytestmark = pytest.mark.django_db
NAN = float("nan")


@pytest.fixture
def job() -> Job:
    make_shared_cluster(alice=Role.MEMBER)
    return make_job("alice")


def curves(job: Job, *, rank: int | None = None) -> tuple[MetricCurve, ...]:
    wanted = Wanted(names=["loss"], all_ranks=True, rank=rank)
    return metric_curves(make_viewer("alice"), job.pk, wanted)


def band(job: Job, axis: Axis = Axis.STEP) -> RankBand:
    found = band_of(curves(job), axis)
    assert found is not None
    return found


def test_mean_and_range_over_three_ranks(job: Job) -> None:
    for rank, values in enumerate(([4.0, 2.0, 1.0], [6.0, 4.0, 3.0], [5.0, 3.0, 8.0])):
        add_values(member_of_job(job, rank=rank), values)

    found = band(job)

    assert (found.ranks, found.x) == (3, (0, 1, 2))
    assert found.mean == (5.0, 3.0, 4.0)
    assert found.low == (4.0, 2.0, 1.0)
    assert found.high == (6.0, 4.0, 8.0)


def test_a_rank_counts_only_between_its_points_and_without_values_that_are_not_finite(
    job: Job,
) -> None:
    add_values(member_of_job(job), [0.0, 0.0, 0.0, 0.0, 0.0])
    add_values(member_of_job(job, rank=1), [2.0, NAN, 4.0], first=1)

    found = band(job)

    assert found.mean == (0.0, 1.0, 1.5, 2.0, 0.0)
    assert found.high == (0.0, 2.0, 3.0, 4.0, 0.0)


def test_superseded_points_are_not_in_the_mean(job: Job) -> None:
    add_values(member_of_job(job), [1.0, 1.0, 9.0])
    add_values(member_of_job(job, attempt=2), [2.0, 2.0], first=2)

    assert band(job).mean == (1.0, 1.0, 2.0, 2.0)


def test_without_a_finite_value_there_is_no_band(job: Job) -> None:
    add_values(member_of_job(job), [NAN, NAN])

    assert band_of(curves(job), Axis.STEP) is None
    assert broken_places(curves(job)[0], Axis.STEP) == [(0, 1), (1, 1)]


def test_one_rank_can_be_chosen_and_ranks_are_listed(job: Job) -> None:
    for rank in (0, 3):
        add_values(member_of_job(job, rank=rank), [float(rank)])

    assert [one.rank for one in curves(job, rank=3)] == [3]
    (summary,) = metrics_of_job(make_viewer("alice"), job.pk)
    assert summary.node_ranks == (0, 3)
