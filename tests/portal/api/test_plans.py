"""``/api/v1/jobs/plan/``: what the next round would do, and no side effect."""

from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone

from scheduling.clusters.models import Device, Node, VcQuota, VirtualCluster
from scheduling.core.jobspec.amending import amended
from scheduling.jobs.models import Job, JobEvent
from scheduling.rounds.models import Round
from scheduling.runs.models import Attempt, Lease, Member
from tenants.models import AuditEntry
from tenants.roles import Scope
from tests.factories.cluster import OPPORTUNISTIC, job_document, make_job, pin_cell
from tests.factories.scheduling import run_round
from tests.support.waiting import wait_until

URL = "/api/v1/jobs/plan/"


def whole_nodes(count: int = 1, **changes: Any) -> dict[str, Any]:
    return job_document(worker={"instances": count, "devices": 8}, **changes)


def plan(client: Any, document: dict[str, Any]) -> dict[str, Any]:
    response = client.post(URL, document)
    assert response.status_code == 200, response.json()
    body: dict[str, Any] = response.json()
    assert {"fits", "reason", "starts", "placement", "alternatives", "warnings"} <= body.keys()
    starts = body["starts"]
    assert starts is None or 0.0 <= starts["p10"] <= starts["p50"] <= starts["p90"]
    assert (body["fits"] == "now") == (starts is not None and starts["p90"] == 0.0)
    return body


def test_a_job_that_fits_now_gets_its_place(api: Any) -> None:
    body = plan(api("alice"), job_document(worker={"instances": 2, "devices": 4}))

    assert (body["fits"], body["reason"]["code"]) == ("now", "")
    assert [(m["role"], m["rank"], len(m["devices"])) for m in body["placement"]] == [
        ("worker", 0, 4),
        ("worker", 1, 4),
    ]
    assert body["alternatives"] == []


def test_the_next_round_does_what_the_plan_said(api: Any) -> None:
    document = job_document(worker={"instances": 2, "devices": 2})
    told = plan(api("alice"), document)["placement"]
    job_id = api("alice").post("/api/v1/jobs/", document).json()["id"]

    run_round(timezone.now())

    placed = api("alice").get(f"/api/v1/jobs/{job_id}/").json()["placement"]
    assert [(m["rank"], m["node"], m["devices"]) for m in placed] == [
        (m["rank"], m["node"], m["devices"]) for m in told
    ]


def test_a_job_behind_others_fits_later_and_is_told_what_would_start_now(api: Any) -> None:
    make_job("alice", document=whole_nodes())
    run_round(timezone.now())

    body = plan(api("alice"), whole_nodes())

    assert body["fits"] == "later"
    assert body["reason"]["code"] == "vc-guarantee-in-use"
    assert body["reason"]["text"]
    assert [a["changes"] for a in body["alternatives"]] == [{"class": "opportunistic"}]
    assert body["placement"] == []


def test_what_an_alternative_says_is_true(api: Any) -> None:
    make_job("alice", worker={"devices": 4})
    run_round(timezone.now())

    alternatives = plan(api("alice"), whole_nodes())["alternatives"]

    smaller = next(a for a in alternatives if a["kind"] == "devices")
    assert smaller["changes"] == {"roles.worker.devices": 4}
    assert plan(api("alice"), job_document(worker={"devices": 4}))["fits"] == "now"


def test_an_alternative_gives_up_no_more_than_has_to_be(api: Any) -> None:
    make_job("alice", worker={"devices": 3})
    run_round(timezone.now())

    def told() -> list[dict[str, Any]]:
        return [a["changes"] for a in plan(api("alice"), whole_nodes())["alternatives"]]

    # They are sought for a fraction of a second only, in which a busy machine may not come so far.
    wait_until(lambda: {"roles.worker.devices": 5} in told(), what="the largest that fits")
    assert plan(api("alice"), job_document(worker={"devices": 5}))["fits"] == "now"


def test_a_job_for_a_pinned_cell_is_told_what_starts_outside_it(
    api: Any, problem: Callable[..., Any]
) -> None:
    pinned = job_document(worker={"devices": 2, "pinned_cell": "lab"})
    unknown = problem(api("alice").post(URL, pinned), 400)
    pin_cell("vision-a", "lab", "node-2/1/3")
    now = plan(api("alice"), pinned)
    # Without a limit the futures, which are drawn by rows' numbers, may think it runs for weeks.
    make_job("alice", document={**pinned, "max_duration": "1h"})
    run_round(timezone.now())

    later = plan(api("alice"), pinned)
    larger = plan(api("alice"), job_document(worker={"devices": 4, "pinned_cell": "lab"}))

    assert later["starts"] is not None
    assert larger["starts"] is None
    (fault,) = unknown["errors"]
    assert (fault["field"], fault["value"]) == ("roles.worker.pinned_cell", "lab")
    assert "It has no pinned cells" in fault["remedy"]
    assert [(m["node"], m["devices"]) for m in now["placement"]] == [("node-2", [6, 7])]
    assert (later["fits"], later["reason"]["code"]) == ("later", "vc-guarantee-in-use")
    assert [(a["kind"], a["changes"]) for a in later["alternatives"]] == [
        ("pinned_cell", {"roles.worker.pinned_cell": None}),
        ("class", {"class": "opportunistic", "roles.worker.pinned_cell": None}),
    ]
    assert larger["fits"] == "never"
    assert (
        larger["reason"]["text"] == "The job needs 4 devices; the pinned cell lab has 2 in total."
    )


def test_jobs_that_wait_already_come_first(api: Any) -> None:
    make_job("alice", document=whole_nodes())

    assert plan(api("alice"), job_document())["fits"] == "later"


def test_more_than_the_guarantee_never_fits(api: Any) -> None:
    body = plan(api("alice"), whole_nodes(count=2))

    assert body["fits"] == "never"
    assert body["reason"]["code"] == "exceeds-vc-max"


def test_more_than_the_cluster_never_fits_even_borrowing(api: Any) -> None:
    body = plan(api("alice"), whole_nodes(count=4, **OPPORTUNISTIC))

    assert body["fits"] == "never"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"worker": {"devices": 9}}, "no-cell-of-level"),
        ({"worker": {"device_types": ["h100"]}}, "unknown-type"),
        ({"worker": {"cpus": 500}}, "cpu-or-memory"),
        ({"worker": {"image": "team/base:1"}}, "no-node-with-docker"),
    ],
)
def test_what_the_cluster_cannot_give_is_never(
    api: Any, change: dict[str, Any], code: str
) -> None:
    body = plan(api("alice"), job_document(**change))

    assert (body["reason"]["code"], body["placement"]) == (code, [])
    assert body["fits"] == "never"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"worker": {"devices": 64}}, {"roles.worker.devices": 8}),
        ({"worker": {"devices": 2, "within": "rack"}}, {"roles.worker.within": "node"}),
        (
            {"worker": {"devices": 64, "within": "rack"}},
            {"roles.worker.devices": 8, "roles.worker.within": "node"},
        ),
        ({"worker": {"devices": 64}, "held": True}, {"held": False, "roles.worker.devices": 8}),
    ],
)
def test_what_the_cluster_cannot_give_is_told_what_would_start_in_its_place(
    api: Any, change: dict[str, Any], expected: dict[str, Any]
) -> None:
    document = job_document(**change)

    def told() -> list[dict[str, Any]]:
        return [a["changes"] for a in plan(api("alice"), document)["alternatives"]]

    # They are sought for a fraction of a second only, in which a busy machine may not come so far.
    wait_until(lambda: expected in told(), what="the largest that fits")
    assert plan(api("alice"), amended(document, expected))["fits"] == "now"


def test_a_type_that_is_not_there_is_told_the_one_that_is(api: Any) -> None:
    document = job_document(worker={"device_types": ["h100"]})

    def told() -> list[dict[str, Any]]:
        return [a for a in plan(api("alice"), document)["alternatives"] if a["kind"] == "type"]

    wait_until(told, what="another type")
    for alternative in told():
        assert plan(api("alice"), amended(document, alternative["changes"]))["fits"] == "now"


def test_a_share_that_is_nothing_is_never(api: Any) -> None:
    VcQuota.objects.all().delete()

    body = plan(api("alice"), job_document())

    assert (body["fits"], body["reason"]["code"]) == ("never", "exceeds-vc-max")


@pytest.mark.parametrize(
    ("change", "code"),
    [({"held": True}, "held"), ({"not_before": "2199-01-01T00:00:00Z"}, "not-before")],
)
def test_a_gate_makes_it_later_without_alternatives(
    api: Any, change: dict[str, Any], code: str
) -> None:
    body = plan(api("alice"), job_document(**change))

    assert (body["fits"], body["reason"]["code"]) == ("later", code)
    assert body["alternatives"] == []


def test_a_job_after_one_that_failed_never_starts(api: Any) -> None:
    job = make_job("alice")
    api("alice").post(f"/api/v1/jobs/{job.pk}/stop/", {})

    body = plan(api("alice"), job_document(after=[job.pk]))

    assert (body["fits"], body["reason"]["code"]) == ("never", "after-job")


def test_broken_cells_make_it_later_not_never(api: Any) -> None:
    Device.objects.update(healthy=False)

    body = plan(api("alice"), job_document())

    assert (body["fits"], body["reason"]["code"]) == ("later", "cells-unhealthy")


def test_a_cap_of_the_person_counts(api: Any, world: Any) -> None:
    world.vision.memberships.filter(user__username="alice").update(max_devices=2)

    body = plan(api("alice"), job_document(worker={"devices": 4}))

    assert (body["fits"], body["reason"]["code"]) == ("never", "exceeds-user-max")


def test_blockers_of_other_tenants_are_counted_and_not_named(api: Any) -> None:
    make_job("bob", document=whole_nodes(count=1, virtual_cluster="language-a"))
    for _ in range(2):
        document = whole_nodes(virtual_cluster="language-a", **OPPORTUNISTIC)
        make_job("bob", document=document)
    run_round(timezone.now())

    body = plan(api("alice"), whole_nodes(**OPPORTUNISTIC))

    assert body["fits"] == "later"
    assert body["blocked_by"] == []


def test_a_plan_leaves_nothing_behind(api: Any) -> None:
    tables = (Job, JobEvent, Attempt, Member, Lease, Round, AuditEntry)

    def counts() -> list[int]:
        return [table._base_manager.count() for table in tables]

    before = counts()

    plan(api("alice"), job_document())
    plan(api("alice"), whole_nodes(count=9))

    assert counts() == before
    assert Node.objects.count() == 3


def test_a_document_that_is_wrong_is_refused_as_on_submit(
    api: Any, problem: Callable[..., Any]
) -> None:
    body = problem(api("alice").post(URL, job_document(name="", colour="red")), 400)

    assert {fault["field"] for fault in body["errors"]} >= {"name", "colour"}


def test_whoever_may_not_submit_may_not_plan(api: Any, problem: Callable[..., Any]) -> None:
    problem(api("vera").post(URL, job_document()), 403)
    problem(api("alice", Scope.JOBS_READ).post(URL, job_document()), 403)
    problem(api("bob").post(URL, job_document()), 400)


def test_a_plan_takes_as_many_queries_for_a_full_queue(
    api: Any, django_assert_max_num_queries: Any
) -> None:
    for number in range(20):
        make_job("alice", name=f"job-{number}")
    client = api("alice")

    with django_assert_max_num_queries(49):  # reads the queue, and what run times are known
        plan(client, job_document())
    with django_assert_max_num_queries(31):  # looks only, and how far running jobs are
        plan(client, job_document())


def test_what_changes_between_two_plans_counts(api: Any) -> None:
    client = api("alice")
    assert plan(client, whole_nodes())["fits"] == "now"

    make_job("alice", document=whole_nodes())
    behind = plan(client, whole_nodes())
    Job.objects.unscoped().update(held=True)
    held = plan(client, whole_nodes())
    Node.objects.update(state="cordoned")
    cordoned = plan(client, whole_nodes())
    Node.objects.update(state="ready")
    Device.objects.filter(node__name="node-1", index=0).update(healthy=False)
    broken = plan(client, whole_nodes())
    VcQuota.objects.filter(virtual_cluster__name="vision-a").update(count=2)
    larger = plan(client, whole_nodes(2))

    assert behind["fits"] == "later"
    assert held["fits"] == "now"
    assert cordoned["fits"] == "later"
    assert broken["fits"] == "now"
    assert broken["placement"][0]["node"] != "node-1"
    assert larger["fits"] == "now"


def test_a_job_that_its_policy_would_refuse_is_told_so(api: Any) -> None:
    VirtualCluster.objects.unscoped().filter(name="vision-a").update(policy="elasticflow")
    late = job_document(max_duration="1h", deadline="2001-01-01T00:00:00Z")

    refused = plan(api("alice"), late)
    accepted = plan(api("alice"), job_document())

    assert (refused["fits"], refused["reason"]["code"]) == ("never", "deadline-infeasible")
    assert accepted["fits"] == "now"
