"""Live reconfiguration over REST: the dry run, the apply, the loser of two, the refusals."""

from collections.abc import Callable
from typing import Any

import pytest

from scheduling.clusters.models import Node, Topology, VcQuota, VirtualCluster
from tenants.models import AuditEntry
from tenants.roles import Scope
from tests.factories.cluster import NOW, job_document, make_job
from tests.factories.scheduling import start

pytestmark = pytest.mark.django_db

RECONFIGURE = "/api/v1/cluster/reconfigure/"
VCS = "/api/v1/virtual-clusters/"
MOVE = {
    "op": "move_quota",
    "source": "vision-a",
    "target": "language-a",
    "chain": "a-node",
    "level": "node",
    "count": 1,
}
Problem = Callable[[Any, int], dict[str, Any]]


def send(client: Any, *edits: Any, query: str = "", **rest: Any) -> Any:
    return client.post(f"{RECONFIGURE}{query}", {"edits": list(edits), **rest}, format="json")


def number_of(name: str) -> int:
    return int(VirtualCluster.objects.unscoped().get(name=name).pk)


def quotas() -> dict[str, int]:
    return dict(VcQuota.objects.values_list("virtual_cluster__name", "count"))


def run_a_job(devices: int = 8) -> int:
    job = make_job("alice", job_document(worker={"devices": devices}))
    start(job)
    return int(job.pk)


def test_a_dry_run_lists_who_becomes_opportunistic_and_writes_nothing(api: Any) -> None:
    job = run_a_job()

    body = send(api("root"), MOVE, query="?dry_run=true").json()

    assert body["become_opportunistic"] == [
        {
            "id": job,
            "name": "hello",
            "user": "alice",
            "virtual_cluster": "vision-a",
            "tenant": "vision",
            "devices": 8,
        }
    ]
    assert (body["dry_run"], body["fits"], body["version"]) == (True, True, 1)
    assert body["cells"] == [
        {"virtual_cluster": vc, "chain": "a-node", "level": "a-node", "before": 1, "after": after}
        for vc, after in (("language-a", 2), ("vision-a", 0))
    ]
    assert quotas() == {"vision-a": 1, "language-a": 1}
    assert Topology.objects.count() == 1


def test_the_apply_answers_as_the_dry_run_did_with_the_new_version(api: Any) -> None:
    run_a_job()
    root = api("root")
    tried = send(root, MOVE, query="?dry_run=1").json()

    done = send(root, MOVE, reason="vision is away", expected_version=tried["version"]).json()

    assert done == {**tried, "dry_run": False, "version": 2}
    assert quotas() == {"language-a": 2}
    entry = AuditEntry.objects.unscoped().get(action="cluster.reconfigure")
    assert (entry.actor_name, entry.message) == ("root", "vision is away")


def test_of_two_admins_the_second_gets_a_named_conflict(api: Any, problem: Problem) -> None:
    root = api("root")
    send(root, MOVE, expected_version=1)

    body = problem(send(root, MOVE, expected_version=1), 412)

    assert body["code"] == "stale-edit"
    assert "topology" in body["errors"][0]["message"]
    assert quotas() == {"language-a": 2}


def test_what_does_not_fit_is_an_answer_or_a_conflict_with_the_witness(
    api: Any, problem: Problem
) -> None:
    cells = [{"chain": "a-node", "level": "a-node", "count": 3}]
    greedy = {"op": "change", "virtual_cluster": "vision-a", "cells": cells}
    root = api("root")

    tried = send(root, greedy, query="?dry_run=1").json()
    refused = problem(send(root, greedy), 409)

    assert not tried["fits"]
    assert "needs 4, has 3" in tried["witnesses"][0]
    assert refused["code"] == "does-not-fit"
    assert "needs 4, has 3" in refused["errors"][0]["message"]


def test_all_kinds_of_edits_go_in_one_request(api: Any) -> None:
    done = send(
        api("root"),
        {"op": "archive", "virtual_cluster": "language-a"},
        {"op": "create", "name": "vision-b", "tenant": "vision"},
        {"op": "pin", "virtual_cluster": "vision-b", "name": "p", "address": "node-2"},
        {"op": "pin", "virtual_cluster": "vision-b", "name": "q", "address": "node-1"},
        {"op": "unpin", "virtual_cluster": "vision-b", "name": "q"},
        {"op": "change", "virtual_cluster": "vision-a", "cells": []},
        {"op": "remove_node", "node": "node-3"},
        {"op": "cordon_node", "node": "node-1", "reason": "fan"},
        {"op": "uncordon_node", "node": "node-1"},
    )

    body = done.json()
    assert done.status_code == 200, body
    assert body["nodes_removed"] == ["node-3"]
    assert body["pinned"] == [
        {"virtual_cluster": "vision-b", "name": "p", "before": "", "after": "node-2"}
    ]
    assert quotas() == {}
    assert Node.objects.get(name="node-1").state == "ready"


@pytest.mark.parametrize(
    ("edit", "field"),
    [
        ({"op": "explode"}, "edits[1].op"),
        ({}, "edits[1].op"),
        ({"op": ["pin"]}, "edits[1].op"),
        ({"op": "pin"}, "edits[1].virtual_cluster"),
        ({**MOVE, "count": "1"}, "edits[1].count"),
        ({**MOVE, "count": 5}, "edits[1].source"),
        ({**MOVE, "speed": 1}, "edits[1].speed"),
        ({**MOVE, "source": "x\u0001"}, "edits[1].source"),
        ({"op": "change", "virtual_cluster": "vision-a", "cells": [1]}, "edits[1].cells"),
        ({"op": "cordon_node", "node": "node-1", "reason": ""}, "reason"),
        (
            {
                "op": "add_node",
                "name": "-",
                "host": "h",
                "user": "u",
                "host_key_fingerprint": "x",
            },
            "edits[1].name",
        ),
    ],
)
def test_what_is_wrong_is_named_with_the_number_of_the_edit(
    api: Any, problem: Problem, edit: dict[str, Any], field: str
) -> None:
    body = problem(send(api("root"), {"op": "archive", "virtual_cluster": "vision-a"}, edit), 400)

    assert body["errors"][0]["field"] == field
    assert VirtualCluster.objects.unscoped().filter(archived_at=None).count() == 2


@pytest.mark.parametrize("body", [[], {}, {"edits": 7}, {"edits": [7]}, {"edits": [], "x": 1}])
def test_a_body_that_is_none_is_refused(api: Any, problem: Problem, body: Any) -> None:
    problem(api("root").post(RECONFIGURE, body, format="json"), 400)


def test_only_cluster_admins_with_the_scope_may(api: Any, problem: Problem) -> None:
    for who in (api("alice"), api("lena"), api("root", Scope.JOBS_READ)):
        problem(send(who, MOVE, query="?dry_run=1"), 403)
    only_vcs = api("root", Scope.VC_ADMIN)
    problem(send(only_vcs, {"op": "remove_node", "node": "node-3"}, query="?dry_run=1"), 403)

    assert send(only_vcs, MOVE, query="?dry_run=1").status_code == 200


def test_a_token_that_sees_no_jobs_is_told_numbers_only(api: Any) -> None:
    job = run_a_job()

    (loser,) = send(api("root", Scope.VC_ADMIN), MOVE, query="?dry_run=1").json()[
        "become_opportunistic"
    ]

    assert (loser["id"], loser["name"], loser["user"]) == (job, "", "")


def test_one_virtual_cluster_is_tried_at_its_own_address(api: Any, problem: Problem) -> None:
    job = run_a_job()
    root, address = api("root"), f"{VCS}{number_of('vision-a')}/?dry_run=1"

    patched = root.patch(address, {"cells": []}, format="json").json()
    stale = root.patch(address, {"cells": []}, format="json", headers={"If-Match": '"9"'})
    made = root.post(f"{VCS}?dry_run=1", {"name": "vision-b", "tenant": "vision"}, format="json")
    gone = root.delete(f"{VCS}{number_of('language-a')}/?dry_run=1")

    assert [loser["id"] for loser in patched["become_opportunistic"]] == [job]
    assert problem(stale, 412)["code"] == "stale-edit"
    assert (made.status_code, made.json()["fits"]) == (200, True)
    assert gone.json()["cells"][0]["after"] == 0
    assert quotas() == {"vision-a": 1, "language-a": 1}
    assert VirtualCluster.objects.unscoped().filter(archived_at=None).count() == 2


NODE = {"chain": "a-node", "level": "node", "count": 1}
CHANGES: tuple[dict[str, Any], ...] = (
    {"note": "mine"},
    {"note": "x" * 501},
    {"max_devices_per_user": 0},
    {"max_devices_per_user": 2},
    {"policy": "fair", "policy_args": {}},
    {"policy": "luck"},
    {"policy_args": {"x": 1}},
    {"shadows": [{"policy": "luck"}]},
    {"least_isolation": "strong"},
    {"least_isolation": "container"},
    {"cells": [{**NODE, "count": 0}]},
    {"cells": [{**NODE, "count": 9}]},
    {"cells": [{**NODE, "level": "rack"}]},
    {"pinned": [{"name": "p", "address": "nowhere"}]},
    {"weight": 1},
    {},
)
CREATED = {"name": "vision-b", "tenant": "vision"}
REQUESTS = (
    *(("patch", "vision-a", who, body) for body in CHANGES for who in ("root", "lena", "alice")),
    ("patch", "nobody", "root", {"note": "x"}),
    *(("post", "", "root", {**CREATED, **body}) for body in CHANGES if "note" in body),
    ("post", "", "root", {**CREATED, "name": "vision-a"}),
    ("post", "", "root", {**CREATED, "tenant": "nowhere"}),
    ("post", "", "lena", CREATED),
    ("delete", "vision-a", "root", {}),
    ("delete", "language-a", "root", {}),
    ("delete", "language-a", "lena", {}),
)


@pytest.mark.parametrize(("method", "name", "who", "body"), REQUESTS)
def test_dry_run_of_one_virtual_cluster_answers_as_the_request_without_it(
    api: Any, method: str, name: str, who: str, body: dict[str, Any]
) -> None:
    run_a_job()
    Node.objects.update(isolation_level="user", probed_at=NOW)
    end = f"{number_of(name) if name != 'nobody' else 999}/" if name else ""
    client, rows = api(who), list(VirtualCluster.objects.unscoped().order_by("id").values())

    tried = getattr(client, method)(f"{VCS}{end}?dry_run=1", body, format="json")
    assert list(VirtualCluster.objects.unscoped().order_by("id").values()) == rows
    done = getattr(client, method)(f"{VCS}{end}", body, format="json")

    if done.status_code == 409 and done.json()["code"] == "does-not-fit":
        assert (tried.status_code, tried.json()["fits"]) == (200, False)
        assert tried.json()["witnesses"] == [e["value"] for e in done.json()["errors"]]
    elif done.status_code >= 400:
        assert tried.status_code == done.status_code
        assert tried.json()["code"] == done.json()["code"]
        assert tried.json()["errors"] == done.json()["errors"]
    else:
        assert (tried.status_code, tried.json()["fits"]) == (200, True)


def test_the_page_of_one_reports_what_starts_now_and_what_the_past_needed(api: Any) -> None:
    run_a_job(devices=2)

    body = api("alice").get(f"{VCS}{number_of('vision-a')}/").json()

    largest = {row["devices"]: row for row in body["largest"]}
    assert (largest[4]["now"], largest[2]["now"], largest[8]["now"]) == (1, 3, 0)
    assert largest[8]["borrowed"] == 2
    assert body["recommended"]["days"] == 30
    (node,) = [row for row in body["recommended"]["levels"] if row["level"] == "node"]
    assert node["count"] == 1


def test_cells_are_shown_virtual_beside_physical(api: Any) -> None:
    job = run_a_job(devices=2)

    body = api("alice").get(f"{VCS}{number_of('vision-a')}/cells/").json()
    foreign = api("bob").get(f"{VCS}{number_of('vision-a')}/cells/")

    (cell,) = body["cells"]
    assert (body["total"], body["bound"], cell["level"], cell["devices"]) == (1, 1, "node", 8)
    assert [leaf["use"] for leaf in cell["leaves"]].count("used") == 2
    assert {leaf["job"] for leaf in cell["leaves"]} == {job, None}
    assert cell["physical"] == cell["leaves"][0]["node"]
    assert foreign.status_code == 404
