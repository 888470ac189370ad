"""Advice from replays of past days: recommendation, planned nodes, cancel, rights, regret."""

from datetime import timedelta

import pytest

from scheduling.clusters.models import VirtualCluster
from scheduling.core.policies import POLICIES
from scheduling.storage.directory import DirectoryStorage
from scheduling.what_if.models import WhatIf, WhatIfKind
from scheduling.what_if.queries import regrets_of, visible_advice
from scheduling.what_if.services import what_if as what_ifs
from scheduling.what_if.services.advice import advice_steps, advise, candidates
from scheduling.what_if.services.recorded_days import recorded_days
from scheduling.what_if.services.replays import vc_of
from scheduling.what_if.services.what_if import (
    answer_what_if,
    ask_advice,
    cancel_what_if,
    forget_what_ifs,
    what_if_for,
)
from tenants.errors import ForbiddenError, InvalidError, NotFoundError
from tenants.models import Tenant
from tenants.roles import Role
from tests.factories.cluster import NOW
from tests.factories.job_history import three_finished_jobs
from tests.factories.tenants import make_member, make_user, make_viewer

__all__ = ["three_finished_jobs"]

pytestmark = pytest.mark.django_db
DAY = timedelta(days=1)
QUICK = ("fifo", "backfill", "srtf", "srsf", "tiresias")


@pytest.fixture(autouse=True)
def quick_policies(monkeypatch):
    """Replay under some policies only."""
    found = {name: POLICIES[name] for name in QUICK}
    monkeypatch.setattr("scheduling.what_if.services.advice.POLICIES", found)


def days_of(tmp_path):
    vc = VirtualCluster.objects.unscoped().get(name="vision-a")
    return recorded_days(
        vc=vc, since=NOW, until=NOW + DAY, storage=DirectoryStorage(tmp_path), now=NOW + DAY
    )


def ask(viewer="alice", **changes):
    given = {"virtual_cluster": "vision-a", "since": NOW, "until": NOW + DAY, "now": NOW + DAY}
    return ask_advice(viewer=make_viewer(viewer), **{**given, **changes})


def answered(tmp_path, **changes):
    row = ask(**changes)
    assert answer_what_if(pk=row.pk, storage=DirectoryStorage(tmp_path), now=NOW + DAY)
    return WhatIf.objects.unscoped().get(pk=row.pk)


def with_sizes(monkeypatch):
    """Let every policy read the true work, so that shortest first has something to sort."""
    from scheduling.what_if.services import advice, replays

    def change(**given):
        return replays_change(**{**given, "size_aware": True})

    replays_change = replays.Change
    monkeypatch.setattr(advice, "Change", change)


def test_the_policy_in_force_comes_first_and_its_replay_is_accurate(tmp_path, three_finished_jobs):
    row = answered(tmp_path)
    found = row.result

    assert (row.fault, row.kind, row.policy) == ("", "advice", "fifo")
    assert found["accuracy"]["starts"]["within_one_round"] == 1.0
    assert [one["policy"] for one in found["policies"]] == list(QUICK)
    assert found["policies"][0] == found["actual"]
    assert found["actual"]["mean"] == pytest.approx((1000 + 1100 + 1200) / 3, abs=0.01)
    assert (row.step, row.steps) == (len(QUICK), 1 + len(QUICK))


def test_shortest_first_is_recommended_with_its_winners_and_losers(
    tmp_path, three_finished_jobs, monkeypatch
):
    with_sizes(monkeypatch)
    long, first, second = three_finished_jobs

    found = advise(days_of(tmp_path), nodes={})

    assert found["recommendation"]["verdict"] == "change"
    assert found["regret"]["best"] in ("backfill", "srtf", "srsf")
    assert found["regret"]["seconds"] == pytest.approx(600.0, abs=0.01)
    assert found["regret"]["share"] == pytest.approx(600 / 500, abs=0.01)
    changes = found["changes"]
    verdicts = {row["job"]: row["verdict"] for row in changes["jobs"]}
    assert verdicts == {long.pk: "loser", first.pk: "winner", second.pk: "winner"}
    (mine,) = [row for row in changes["virtual_clusters"] if row["name"] == "vision-a"]
    assert (mine["winner"], mine["loser"]) == (2, 1)
    assert mine["mean_change_s"] == pytest.approx(-600.0, abs=0.01)


def test_more_nodes_shorten_the_queue_and_fewer_lengthen_it(tmp_path, three_finished_jobs):
    days = days_of(tmp_path)

    more, fewer = advise(days, nodes={"a": 1}), advise(days, nodes={"a": -1})

    assert more["guarantee"] == fewer["guarantee"] == {"a": 8}
    assert more["other_guarantee"] == {"a": 16}
    assert fewer["other_guarantee"].get("a", 0) == 0
    assert more["actual"]["mean"] == fewer["actual"]["mean"]
    assert more["policies"][0]["mean"] < more["actual"]["mean"]
    assert fewer["policies"][0]["completed"] < 3 or (
        fewer["policies"][0]["mean"] >= fewer["actual"]["mean"]
    )
    assert more["accuracy"]["starts"]["within_one_round"] == 1.0


def test_a_policy_that_takes_too_long_has_a_fault_and_no_figures(tmp_path, three_finished_jobs):
    ticks = iter(range(0, 10**6, 1000))

    found = advise(days_of(tmp_path), nodes={}, clock=lambda: float(next(ticks)), seconds=900.0)

    in_force, *others = found["policies"]
    assert in_force["fault"] == ""
    assert all(one["fault"].startswith("Not finished within") for one in others)
    assert (found["recommendation"]["verdict"], found["regret"]["seconds"]) == ("keep", 0.0)


def test_every_policy_is_a_candidate_once_and_the_steps_count_them(tmp_path, three_finished_jobs):
    names = candidates(vc_of(days_of(tmp_path)))

    assert len(set(names)) == len(names)
    assert advice_steps("fifo") == 2 + len(QUICK) - 1


@pytest.mark.parametrize("nodes", [{"b": 1}, {"a": 10**9}, {"a": -(10**9)}, {"": 1}])
def test_nodes_that_are_not_valid_are_refused(tmp_path, three_finished_jobs, nodes):
    with pytest.raises(InvalidError) as error:
        ask(nodes=nodes)

    assert error.value.errors[0].field == "nodes"


def test_more_nodes_than_the_cluster_can_lose_are_a_fault(tmp_path, three_finished_jobs):
    row = answered(tmp_path, nodes={"a": -1000})

    assert "nodes of type a" in row.fault
    assert row.result == {}


def test_a_cancelled_advice_ends_without_a_result(tmp_path, three_finished_jobs, monkeypatch):
    row = ask()
    monkeypatch.setattr(what_ifs, "CANCEL_SECONDS", 0.0)

    def advise_after_cancel(days, **given):
        alice = make_viewer("alice")
        cancel_what_if(alice, row.pk, now=NOW + DAY, kind=WhatIfKind.ADVICE)
        return advise(days, **{**given, "comes_to": lambda _step: None})

    monkeypatch.setattr(what_ifs, "advise", advise_after_cancel)
    answer_what_if(pk=row.pk, storage=DirectoryStorage(tmp_path), now=NOW + DAY)

    found = WhatIf.objects.unscoped().get(pk=row.pk)
    assert (found.fault, found.result) == ("Cancelled.", {})
    assert found.finished_at == NOW + DAY


def test_only_the_requester_and_cluster_admins_cancel(tmp_path, three_finished_jobs):
    row = ask()
    make_member(Tenant.objects.unscoped().get(name="vision"), make_user("vera"), Role.VIEWER)
    make_user("root", is_cluster_admin=True)

    with pytest.raises(ForbiddenError):
        cancel_what_if(make_viewer("vera"), row.pk, now=NOW + DAY, kind=WhatIfKind.ADVICE)
    with pytest.raises(NotFoundError):
        cancel_what_if(make_viewer("bob"), row.pk, now=NOW + DAY, kind=WhatIfKind.ADVICE)
    with pytest.raises(NotFoundError):
        what_if_for(make_viewer("alice"), row.pk, now=NOW + DAY)
    root = make_viewer("root")
    done = cancel_what_if(root, row.pk, now=NOW + DAY, kind=WhatIfKind.ADVICE)
    assert done.fault == "Cancelled."


def test_virtual_clusters_of_other_tenants_are_only_counted(tmp_path, three_finished_jobs):
    result = answered(tmp_path).result
    make_user("root", is_cluster_admin=True)

    alice = visible_advice(make_viewer("alice"), result)["changes"]
    root = visible_advice(make_viewer("root"), result)["changes"]

    assert [row["name"] for row in alice["virtual_clusters"]] == ["vision-a"]
    assert [row["name"] for row in root["virtual_clusters"]] == ["language-a", "vision-a"]
    assert sum(root["others"].values()) == 0


def test_the_newest_advice_gives_the_regret_and_outlives_the_day(tmp_path, three_finished_jobs):
    old, new = answered(tmp_path), answered(tmp_path)
    planned = answered(tmp_path, nodes={"a": 1})

    assert forget_what_ifs(now=NOW + 3 * DAY) == 2
    (found,) = regrets_of(make_viewer("alice"), since=NOW).values()

    assert (found.advice, found.virtual_cluster, found.policy) == (new.pk, "vision-a", "fifo")
    assert found.seconds >= 0.0
    assert not WhatIf.objects.unscoped().filter(pk__in=[old.pk, planned.pk]).exists()
    assert regrets_of(make_viewer("bob"), since=NOW) == {}
    assert forget_what_ifs(now=NOW + 40 * DAY) == 1
