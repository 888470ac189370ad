"""Shadow policies decide stored rounds beside the live ones, and change nothing."""

from datetime import timedelta
from pathlib import Path

import pytest

from scheduling.clusters.models import VirtualCluster
from scheduling.core.policy_interface import Alloc, Part, Plan
from scheduling.jobs.models import Job
from scheduling.rounds.models import Round
from scheduling.rounds.services import rounds
from scheduling.rounds.services.evidence import prune_rounds, read_shadows, store_round
from scheduling.runs.models import Attempt, Member
from scheduling.storage.directory import DirectoryStorage
from scheduling.what_if.models import ShadowDecision
from scheduling.what_if.queries import round_shadows, shadow_totals
from scheduling.what_if.services import shadows
from tenants.errors import InvalidError, NotFoundError
from tenants.roles import Role
from tests.factories.cluster import (
    NOW,
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.policies import making
from tests.factories.scheduling import CONFIG, change_vc
from tests.factories.tenants import make_tenant, make_viewer

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def vc():
    make_cluster()
    make_priority_classes()
    made = make_virtual_cluster(
        cells=1,
        shadows=[
            {"policy": "fifo", "policy_args": {"backfill": False}},
            {"policy": "mine", "policy_args": {}},
        ],
    )
    make_virtual_cluster("language-a", make_tenant("language", bob=Role.MEMBER))
    return made


def run_round(data_dir, at=NOW):
    def store(number, reading, result):
        return store_round(
            storage=DirectoryStorage(data_dir), number=number, reading=reading, result=result
        )

    return rounds.run_round(now=lambda: at, config=CONFIG, store=store)


def decide(number, data_dir, answer, **changes):
    return shadows.decide_shadows(
        number=number, storage=DirectoryStorage(data_dir), now=NOW, make=making(answer), **changes
    )


def read_from(data_dir: Path):
    return lambda stored: read_shadows(storage=DirectoryStorage(data_dir), stored=stored)


def only(*jobs):
    """Starts these and holds all others."""
    allocs = {job.pk: Alloc(parts=(Part(n=job.devices, type="a"),)) for job in jobs}
    return Plan(allocs=allocs, order=tuple(allocs), why={})


def test_a_shadow_says_whom_it_would_have_started_and_held_and_nothing_happens(tmp_path):
    running, big, small = make_job(worker={"devices": 4}), None, None
    run_round(tmp_path)
    big, small = make_job(worker={"devices": 8}), make_job(worker={"devices": 2})
    run_round(tmp_path, NOW + timedelta(seconds=10))
    before = (Attempt.objects.count(), Member.objects.count(), Job.objects.unscoped().count())

    kept = decide(2, tmp_path, lambda _view: only(running))

    assert kept == 2
    strict, mine = round_shadows(make_viewer("alice"), 2, read=read_from(tmp_path))
    assert (strict.policy, strict.policy_args) == ("fifo", {"backfill": False})
    assert (strict.agrees, strict.only_live, strict.starts) == (False, 1, 0)
    assert strict.jobs is not None
    assert mine.jobs is not None
    assert strict.jobs["only_live"] == [small.pk]
    assert f"Job {big.pk} is ahead of it" in strict.jobs["why"][str(small.pk)]
    assert mine.jobs["only_live"] == [small.pk]
    assert mine.fault == ""
    after = (Attempt.objects.count(), Member.objects.count(), Job.objects.unscoped().count())
    assert after == before
    assert VirtualCluster.objects.unscoped().get(name="vision-a").policy_state == {}


def test_a_shadow_that_fails_or_hangs_is_written_down_and_costs_nobody_else(tmp_path):
    make_job()
    run_round(tmp_path)

    def spin(_view):
        while True:
            pass

    assert decide(1, tmp_path, spin, policy_seconds=0.2) == 2

    strict, mine = round_shadows(make_viewer("alice"), 1, read=read_from(tmp_path))
    assert (strict.agrees, strict.both) == (True, 1)
    assert mine.fault == "policy mine took too long"
    assert not mine.agrees


def test_shadows_remember_between_rounds_and_decide_each_round_once(tmp_path):
    for step in range(3):
        make_job()
        run_round(tmp_path, NOW + timedelta(seconds=10 * step))
    answer = lambda view: only()  # noqa: E731

    kept = [decide(number, tmp_path, answer) for number in (1, 2, 3, 3, 99)]

    assert kept == [2, 2, 2, 0, 0]
    mine = ShadowDecision.objects.filter(policy="mine").order_by("round__number")
    assert [row.state for row in mine] == [{"asked": 1}, {"asked": 2}, {"asked": 3}]


def test_totals_add_up_rounds_and_only_members_see_them(tmp_path, vc):
    for step in range(2):
        make_job()
        run_round(tmp_path, NOW + timedelta(seconds=10 * step))
        decide(step + 1, tmp_path, lambda _view: only())

    totals = {row.policy: row for row in shadow_totals(make_viewer("alice"), vc.pk)}

    assert (totals["fifo"].rounds, totals["fifo"].agreeing, totals["fifo"].both) == (2, 2, 2)
    assert (totals["mine"].agreeing, totals["mine"].only_live) == (0, 2)
    assert shadow_totals(make_viewer("alice"), vc.pk, since=NOW + timedelta(days=1)) == ()
    assert round_shadows(make_viewer("bob"), 1, read=read_from(tmp_path)) == ()
    with pytest.raises(NotFoundError):
        shadow_totals(make_viewer("bob"), vc.pk)
    with pytest.raises(NotFoundError):
        round_shadows(make_viewer("alice"), 77, read=read_from(tmp_path))


def test_what_shadows_say_counts_with_the_round_and_goes_with_it(tmp_path):
    make_job()
    run_round(tmp_path)
    before = Round.objects.get().snapshot_bytes
    decide(1, tmp_path, lambda _view: only())
    files = [path for path in tmp_path.rglob("*") if path.is_file()]

    stored = Round.objects.get()
    assert len(files) == 2
    assert stored.snapshot_bytes == sum(path.stat().st_size for path in files) > before

    prune_rounds(
        storage=DirectoryStorage(tmp_path), older_than=NOW - timedelta(days=1), keep_bytes=0
    )

    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    (row, _) = round_shadows(make_viewer("alice"), 1, read=read_from(tmp_path))
    assert row.jobs is None


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ([{"policy": "no-such"}], "shadows[0].policy"),
        ([{"policy": "fifo", "policy_args": {"backfill": 3}}], "shadows[0].policy_args"),
        ([{"policy": "fifo"}] * 5, "shadows"),
        ("fifo", "shadows"),
        (["fifo"], "shadows"),
    ],
)
def test_shadows_are_checked_as_policies_are(vc, given, field):
    with pytest.raises(InvalidError) as refused:
        change_vc(vc.name, shadows=given)

    assert [error.field for error in refused.value.errors] == [field]
