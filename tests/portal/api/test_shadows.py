"""Shadow policies and faults of policies over the API."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from scheduling.clusters.models import VirtualCluster
from scheduling.rounds.services import rounds
from scheduling.rounds.services.evidence import store_round
from scheduling.storage.directory import DirectoryStorage
from scheduling.what_if.services import shadows
from tests.factories.cluster import NOW, make_job
from tests.factories.scheduling import CONFIG

VCS, ROUNDS = "/api/v1/virtual-clusters/", "/api/v1/rounds/"
STRICT = {"policy": "fifo", "policy_args": {"backfill": False}}
Problem = Callable[..., Any]


@pytest.fixture
def vc(world: Any) -> VirtualCluster:
    return VirtualCluster.objects.unscoped().get(name="vision-a")


def a_round(data_dir: Path) -> None:
    def store(number: int, reading: Any, result: Any) -> tuple[str, str, int]:
        return store_round(
            storage=DirectoryStorage(data_dir), number=number, reading=reading, result=result
        )

    rounds.run_round(now=lambda: NOW, config=CONFIG, store=store)
    shadows.decide_shadows(number=1, storage=DirectoryStorage(data_dir), now=NOW)


def test_shadows_are_set_read_per_round_and_summed_up(api: Any, vc: VirtualCluster) -> None:
    set_ = api("root").patch(f"{VCS}{vc.pk}/", {"shadows": [STRICT]}, format="json")
    make_job("alice")
    make_job("alice", worker={"devices": 8})
    last = make_job("alice", worker={"devices": 2})
    a_round(Path(settings.TESSERA.data_dir))

    of_round = api("alice").get(f"{ROUNDS}1/shadows/").json()
    total = api("alice").get(f"{VCS}{vc.pk}/shadows/").json()
    none = api("alice").get(f"{VCS}{vc.pk}/shadows/", {"since": "2030-01-01T00:00:00Z"}).json()

    assert set_.status_code == 200
    assert set_.json()["shadows"] == [STRICT]
    (one,) = of_round["shadows"]
    assert (one["agrees"], one["both"], one["only_live"]) == (False, 1, 1)
    assert one["jobs"]["only_live"] == [last.pk]
    assert "is ahead of it" in one["jobs"]["why"][str(last.pk)]
    (summed,) = total["shadows"]
    assert (summed["rounds"], summed["agreeing"], summed["only_live"]) == (1, 0, 1)
    assert none == {"shadows": []}
    assert api("bob").get(f"{ROUNDS}1/shadows/").json()["shadows"] == []
    assert api("bob").get(f"{VCS}{vc.pk}/shadows/").status_code == 404


def test_who_may_not_edit_sets_no_shadows(api: Any, vc: VirtualCluster, problem: Problem) -> None:
    problem(api("lena").patch(f"{VCS}{vc.pk}/", {"shadows": [STRICT]}, format="json"), 403)
    body = problem(
        api("root").patch(f"{VCS}{vc.pk}/", {"shadows": [{"policy": "x"}]}, format="json"), 400
    )

    assert body["errors"][0]["field"] == "shadows[0].policy"


@pytest.mark.parametrize(
    "sent",
    [
        {"policy": "x" * 1_000_000},
        {"policy": "x" * 90_000},  # a body's longest text has 100,000
        {"policy": "sia", "policy_args": {"growth": "x" * 90_000}},
        {"policy": "sia", "policy_args": {"x" * 1_000_000: 1}},
        {"x" * 1_000_000: 1},
    ],
)
def test_a_refusal_repeats_little_of_what_was_sent(
    api: Any, vc: VirtualCluster, problem: Problem, sent: dict[str, Any]
) -> None:
    answer = api("root").patch(f"{VCS}{vc.pk}/", sent, format="json")

    problem(answer, 400)
    assert len(answer.content) < 3000


def test_a_moment_that_is_none_is_refused(api: Any, vc: VirtualCluster, problem: Problem) -> None:
    body = problem(api("alice").get(f"{VCS}{vc.pk}/shadows/", {"since": "today"}), 400)

    assert body["errors"][0]["field"] == "since"


def test_the_fault_of_a_policy_is_shown_until_another_is_chosen(
    api: Any, vc: VirtualCluster
) -> None:
    VirtualCluster.objects.unscoped().filter(pk=vc.pk).update(
        policy="sia", policy_fault="policy sia took too long", policy_fault_at=NOW
    )

    shown = api("alice").get(f"{VCS}{vc.pk}/").json()
    after = api("root").patch(f"{VCS}{vc.pk}/", {"policy": "fifo"}, format="json").json()

    assert (shown["policy_fault"], shown["policy_fault_at"]) == (
        "policy sia took too long",
        "2026-03-02T09:30:00Z",
    )
    assert (after["policy_fault"], after["policy_fault_at"]) == ("", None)
