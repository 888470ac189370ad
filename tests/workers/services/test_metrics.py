"""Metrics of jobs: stored within bounds, read at any resolution, tenancy, repeated steps."""

import dataclasses
import math
from datetime import UTC, datetime
from typing import Any

import pytest

from scheduling.runs.models import Member
from tenants.errors import NotFoundError
from tenants.roles import Role
from tests.factories.cluster import (
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.scheduling import run_round
from tests.factories.tenants import make_tenant, make_viewer
from workers import metrics as queries
from workers.metrics import Axis, MetricCurve, Wanted, metric_curves, metrics_of_job
from workers.models import MetricBlock, MetricSeries, TrainingGoal
from workers.services import metrics
from workers.services.dispatch import MemberRef, rank_of
from workers.services.metrics import add_points, drop_excess
from workers.services.points import PointBatch, Sample, SeriesKey
from workers.services.rollups import BLOCK, FAN

pytestmark = pytest.mark.django_db
AT = datetime(2026, 3, 2, 9, 30, 5, tzinfo=UTC)
LOSS = SeriesKey(0, "loss")


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


def samples(steps: range | list[int], value: float = 1.0) -> list[Sample]:
    return [Sample(step, AT.timestamp() + step, step / 100, value) for step in steps]


def add(rank: MemberRef, found: list[Sample], key: SeriesKey = LOSS) -> None:
    add_points(rank=rank, batch=PointBatch(series={key: found}), at=AT)


def curve(rank: MemberRef, **wanted: object) -> MetricCurve:
    (found,) = metric_curves(
        make_viewer("alice"),
        rank.job_id,
        Wanted(**{"names": ["loss"], **wanted}),  # type: ignore[arg-type]
    )
    return found


def test_points_are_served_as_they_were_reported(ranks: list[MemberRef]) -> None:
    add(ranks[0], samples(range(3)))
    add(ranks[0], [Sample(3, math.nan, math.nan, math.nan), Sample(4, 1e10, 0.1, math.inf)])

    found = curve(ranks[0])

    assert found.column("step") == [0, 1, 2, 3, 4]
    assert found.column("value") == [1.0, 1.0, 1.0, None, None]
    assert found.column("bad") == [0, 0, 0, 1, 1]
    assert found.column("time")[3:] == [AT.timestamp(), AT.timestamp() + metrics.LONGEST_DELAY]
    assert found.column("epoch")[3] is None
    assert not found.is_superseded.any()


@pytest.mark.parametrize("piece", [700, 1, 513])
def test_a_long_series_is_read_at_the_wanted_resolution(
    ranks: list[MemberRef], piece: int
) -> None:
    total = 9 * FAN * BLOCK + 77 if piece > 1 else 40
    for first in range(0, total, piece):
        add(ranks[0], samples(range(first, min(total, first + piece)), value=first))

    whole = curve(ranks[0], points=100)
    part = curve(ranks[0], points=2000, since=1000, until=1099)

    assert len(whole.buckets) <= 100
    assert (whole.buckets["count"]).sum() == total
    assert whole.column("step")[-1] == total - 1
    assert whole.column("low")[0] == 0.0
    if total > 1100:
        assert part.column("step") == list(range(1000, 1100))
    levels = set(MetricBlock.objects.values_list("level", flat=True))
    assert levels == ({0} if piece == 1 else {0, 1, 2, 3})
    assert MetricSeries.objects.get().count == total


def test_a_range_of_times_or_epochs_selects_the_same_points(ranks: list[MemberRef]) -> None:
    add(ranks[0], samples(range(20_000)))

    by_time = curve(ranks[0], axis=Axis.TIME, since=AT.timestamp() + 30, until=AT.timestamp() + 59)
    by_epoch = curve(ranks[0], axis=Axis.EPOCH, since=10.0, until=10.5)

    # Times after the present are limited to it.
    assert by_time.column("step") == list(range(30, 60))
    assert by_epoch.column("step") == list(range(1000, 1051))


def test_the_newer_attempt_wins_from_its_first_step(ranks: list[MemberRef]) -> None:
    second = dataclasses.replace(ranks[0], attempt_number=ranks[0].attempt_number + 1)
    add(ranks[0], samples(range(1001), value=1.0))
    add(second, samples(range(600, 700), value=2.0))

    found = curve(ranks[0], points=2000)
    zoomed = curve(ranks[0], points=2000, since=800, until=900)

    won = found.buckets[~found.is_superseded]
    assert won["step"].tolist() == list(range(700))
    assert won["attempt"].tolist() == [1] * 600 + [2] * 100
    assert found.buckets["step"][found.is_superseded].tolist() == list(range(600, 1001))
    assert zoomed.column("step") == list(range(800, 901))
    assert zoomed.is_superseded.all()


def test_reports_of_an_older_attempt_that_arrive_late_do_not_win(ranks: list[MemberRef]) -> None:
    second = dataclasses.replace(ranks[0], attempt_number=ranks[0].attempt_number + 1)
    add(second, samples(range(5, 10)))
    add(ranks[0], samples(range(8)))

    found = curve(ranks[0])

    assert found.column("step") == [*range(8), *range(5, 10)]
    assert found.is_superseded.tolist() == [False] * 5 + [True] * 3 + [False] * 5


def test_old_fine_blocks_go_above_the_bound_and_the_curve_stays(ranks: list[MemberRef]) -> None:
    total = 20 * BLOCK
    add(ranks[0], samples(range(total)))

    deleted = drop_excess(ranks[0].job_id, most=4)

    assert deleted == 18  # 20 full blocks of level 0, and 2 of level 1
    found = curve(ranks[0], points=2000)
    assert found.buckets["count"].sum() == total
    early = curve(ranks[0], points=2000, since=0, until=99)
    assert 10 < len(early.buckets) <= 13  # buckets of 8


def test_limits_of_names_and_series(
    ranks: list[MemberRef], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "MOST_NAMES", 3)
    monkeypatch.setattr(metrics, "MOST_SERIES", 5)
    for rank in ranks:
        series = {SeriesKey(0, f"m{n}"): samples([1]) for n in range(6)}
        add_points(rank=rank, batch=PointBatch(series=series), at=AT)

    assert MetricSeries.objects.count() == 5
    assert set(MetricSeries.objects.values_list("name", flat=True)) == {"m0", "m1", "m2"}


def test_a_second_writer_of_a_series_is_fenced_off(
    ranks: list[MemberRef], monkeypatch: pytest.MonkeyPatch
) -> None:
    add(ranks[0], samples(range(3)))
    stale = MetricSeries.objects.get()
    add(ranks[0], samples(range(3, 5)))
    monkeypatch.setattr(metrics, "_series", lambda rank, found: {LOSS: stale})

    add(ranks[0], samples(range(3, 9)))

    assert curve(ranks[0]).column("step") == [0, 1, 2, 3, 4]


def test_ranks_have_their_own_series(ranks: list[MemberRef]) -> None:
    add(ranks[0], samples(range(3)))
    add(ranks[1], samples(range(2), value=7.0))
    add(ranks[1], samples(range(4)), SeriesKey(1, "lr"))

    alice = make_viewer("alice")
    summaries = metrics_of_job(alice, ranks[0].job_id)
    every = metric_curves(alice, ranks[0].job_id, Wanted(names=["lr", "loss"], all_ranks=True))

    assert [(one.name, one.points, one.ranks, one.last) for one in summaries] == [
        ("loss", 5, 2, 1.0),
        ("lr", 4, 1, 1.0),
    ]
    assert [(one.name, one.rank, one.process) for one in every] == [
        ("lr", 1, 1), ("loss", 0, 0), ("loss", 1, 0),
    ]  # fmt: skip
    assert curve(ranks[0]).rank == 0


def test_metrics_are_visible_to_the_tenant_only(ranks: list[MemberRef]) -> None:
    add(ranks[0], samples(range(3)))
    make_tenant("language", bob=Role.LEAD)
    stranger = make_viewer("bob")

    with pytest.raises(NotFoundError):
        metrics_of_job(stranger, ranks[0].job_id)
    with pytest.raises(NotFoundError):
        metric_curves(stranger, ranks[0].job_id, Wanted(names=["loss"]))


@pytest.mark.parametrize("total", [BLOCK, 40 * BLOCK + 3, 65 * BLOCK, 72 * BLOCK + 77])
@pytest.mark.parametrize("points", [10, 64, 1000])
def test_of_a_whole_long_series_only_coarse_and_open_blocks_are_read(
    ranks: list[MemberRef], monkeypatch: pytest.MonkeyPatch, total: int, points: int
) -> None:
    add(ranks[0], [Sample(n, AT.timestamp() + n, n / 100, math.sin(n)) for n in range(total)])
    (row,) = MetricSeries.objects.all()
    wanted = Wanted(names=["loss"], points=points)
    usable = MetricBlock.objects.filter(queries._usable([row], wanted)).count()

    found = curve(ranks[0], points=points)

    assert usable <= 2 * (4 * points // BLOCK + 1) + 4 + FAN
    monkeypatch.setattr(queries, "MOST_LONG", -1)
    every = curve(ranks[0], points=points)
    assert (found.buckets == every.buckets).all()
    assert found.buckets["count"].sum() == total


def test_points_that_arrive_during_a_read_do_no_harm(
    ranks: list[MemberRef], monkeypatch: pytest.MonkeyPatch
) -> None:
    add(ranks[0], samples(range(40 * BLOCK)))
    usable = queries._usable

    def meanwhile(*given: Any) -> Any:
        add(ranks[0], samples(range(40 * BLOCK, 49 * BLOCK)))
        return usable(*given)

    monkeypatch.setattr(queries, "_usable", meanwhile)

    found = curve(ranks[0], points=10)

    steps = found.column("step")
    assert steps == sorted(steps)
    assert found.buckets["count"].sum() >= 40 * BLOCK


def test_the_declared_end_is_stored(ranks: list[MemberRef]) -> None:
    for total in (90, 100):
        add_points(rank=ranks[0], batch=PointBatch(total_steps=total), at=AT)

    assert TrainingGoal.objects.get().total_steps == 100
