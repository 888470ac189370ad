"""The cluster, its virtual clusters, imports, rounds and the audit."""

from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone

from scheduling.clusters.models import Node, Topology, VcQuota, VirtualCluster
from scheduling.jobs.models import Job
from scheduling.rounds.models import Round
from tenants.roles import Scope
from tests.factories.cluster import NOW, make_job, pin_cell
from tests.factories.scheduling import run_round, start

CLUSTER, VCS = "/api/v1/cluster/", "/api/v1/virtual-clusters/"
ROUNDS, AUDIT = "/api/v1/rounds/", "/api/v1/audit/"
IMPORT, JOBS = "/api/v1/cluster/import/", "/api/v1/import/openpai/"
Problem = Callable[..., Any]
HIVED = """
physicalCluster:
  cellTypes:
    K80-NODE: {childCellType: K80, childCellNumber: 4, isNodeLevel: true}
  physicalCells:
  - {cellType: K80-NODE, cellAddress: 10.0.0.1}
  - {cellType: K80-NODE, cellAddress: 10.0.0.2}
virtualClusters:
  vision-a: {virtualCells: [{cellType: K80-NODE, cellNumber: 1}]}
  robots: {virtualCells: [{cellType: K80-NODE, cellNumber: 1}]}
"""
OPENPAI = {
    "protocolVersion": 2,
    "name": "from_pai",
    "type": "job",
    "prerequisites": [{"name": "base", "type": "dockerimage", "uri": "team/base:1"}],
    "taskRoles": {
        "worker": {
            "instances": 1,
            "dockerImage": "base",
            "resourcePerInstance": {"cpu": 1, "memoryMB": 512, "gpu": 1},
            "commands": ["echo hello"],
        }
    },
    "defaults": {"virtualCluster": "vision-a"},
    "extras": {"submitFrom": "elsewhere"},
}


# The cluster


def test_one_snapshot_has_nodes_shares_and_what_is_free(api: Any) -> None:
    response = api("alice").get(CLUSTER)

    body = response.json()
    assert body["version"] == "1.0"
    assert [len(node["devices"]) for node in body["nodes"]] == [8, 8, 8]
    assert [vc["name"] for vc in body["virtual_clusters"]] == ["vision-a"]
    assert body["free"][0]["idle"] == 24
    assert body["unassigned"] == {"a-node": 8}
    assert body["totals"]["devices"] == 24


def test_a_snapshot_that_is_still_right_has_no_body(api: Any) -> None:
    client = api("alice")
    tag = client.get(CLUSTER).headers["ETag"]

    same = client.get(CLUSTER, HTTP_IF_NONE_MATCH=tag)
    Node.objects.filter(name="node-1").update(state="down")
    changed = client.get(CLUSTER, HTTP_IF_NONE_MATCH=tag)

    assert (same.status_code, same.content) == (304, b"")
    assert changed.status_code == 200


def test_what_another_tenant_runs_is_not_named(api: Any) -> None:
    job = make_job("bob", virtual_cluster="language-a", name="hidden-name")
    run_round(timezone.now())

    seen = api("alice").get(CLUSTER)
    own = api("bob").get(CLUSTER).json()

    assert b"hidden-name" not in seen.content
    occupant = _occupants(seen.json())[0]
    assert (occupant["tenant"], occupant["job"]) == ("another tenant", None)
    assert _occupants(own)[0]["job"] == job.pk


def test_a_snapshot_takes_a_fixed_number_of_queries(
    api: Any, django_assert_max_num_queries: Any
) -> None:
    for number in range(20):
        make_job("alice", name=f"job-{number}")
    client = api("alice")

    with django_assert_max_num_queries(16):
        client.get(CLUSTER)


# Virtual clusters


def vc_body(**changes: Any) -> dict[str, Any]:
    cells = [{"chain": "a-node", "level": "node", "count": 1}]
    return {"name": "vision-b", "tenant": "vision", "cells": cells, **changes}


def test_an_admin_makes_a_virtual_cluster_and_sees_what_fits(api: Any) -> None:
    response = api("root").post(VCS, vc_body())

    body = response.json()
    assert response.status_code == 201, body
    assert body["cells"] == [{"chain": "a-node", "level": "a-node", "count": 1}]
    assert body["devices"]["guarantee"] == 8
    fits = {size["devices"]: size["fits"] for size in body["fits"][0]["sizes"]}
    assert (fits[8], fits[16]) == ("now", "borrow")


def test_more_than_there_is_is_refused_and_changes_nothing(api: Any, problem: Problem) -> None:
    cells = [{"chain": "a-node", "level": "node", "count": 2}]

    body = problem(api("root").post(VCS, vc_body(cells=cells)), 409)

    assert body["code"] == "does-not-fit"
    assert not VirtualCluster.objects.unscoped().filter(name="vision-b").exists()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": "a b"}, "name"),
        ({"name": None}, "name"),
        ({"tenant": "nowhere"}, "tenant"),
        ({"policy": "luck"}, "policy"),
        ({"policy_args": {"x": 1}}, "policy_args"),
        ({"policy_args": []}, "policy_args"),
        ({"cells": {}}, "cells"),
        ({"cells": [{"chain": "h100", "level": "node", "count": 1}]}, "cells[0].chain"),
        ({"cells": [{"chain": "a-node", "level": "rack", "count": 1}]}, "cells[0].level"),
        ({"cells": [{"chain": "a-node", "level": "node", "count": -1}]}, "cells[0].count"),
        ({"cells": [{"chain": "a-node"}]}, "cells[0]"),
        ({"pinned": [{"name": "p", "address": "nowhere"}]}, "pinned[0].address"),
        ({"max_devices_per_user": 0}, "max_devices_per_user"),
        ({"max_opportunistic_devices": "2"}, "max_opportunistic_devices"),
        ({"note": "x" * 501}, "note"),
        ({"weight": 1}, "weight"),
    ],
)
def test_what_a_virtual_cluster_refuses_is_named(
    api: Any, problem: Problem, change: dict[str, Any], field: str
) -> None:
    faults = problem(api("root").post(VCS, vc_body(**change)), 400)["errors"]

    assert field in [fault["field"] for fault in faults]
    assert all(fault["remedy"] for fault in faults)


def test_of_two_admins_who_reshape_the_second_gets_an_error(api: Any, problem: Problem) -> None:
    url = f"{VCS}{VirtualCluster.objects.unscoped().get(name='vision-a').pk}/"
    tag = api("root").get(url).headers["ETag"]

    first = api("root").patch(url, {"note": "first"}, HTTP_IF_MATCH=tag)
    second = api("root").patch(url, {"cells": []}, HTTP_IF_MATCH=tag)

    assert first.status_code == 200
    assert problem(second, 412)["code"] == "stale-edit"
    assert VcQuota.objects.filter(virtual_cluster__name="vision-a").exists()


def test_a_lead_sets_caps_and_nothing_else(api: Any, problem: Problem) -> None:
    url = f"{VCS}{VirtualCluster.objects.unscoped().get(name='vision-a').pk}/"

    assert api("lena").patch(url, {"max_devices_per_user": 4}).status_code == 200
    problem(api("lena").patch(url, {"policy": "fifo"}), 403)
    problem(api("alice").patch(url, {"max_devices_per_user": 8}), 403)
    problem(api("lena").post(VCS, vc_body()), 403)
    problem(api("root", Scope.JOBS_READ).patch(url, {"note": "x"}), 403)


def test_another_tenants_virtual_cluster_is_not_there(api: Any, problem: Problem) -> None:
    url = f"{VCS}{VirtualCluster.objects.unscoped().get(name='language-a').pk}/"

    problem(api("alice").get(url), 404)
    problem(api("lena").patch(url, {"max_devices_per_user": 4}), 404)
    problem(api("lena").delete(url), 404)
    names = [row["name"] for row in api("alice").get(VCS).json()["results"]]
    assert names == ["vision-a"]


def test_a_virtual_cluster_with_jobs_stays_and_an_empty_one_goes(
    api: Any, problem: Problem
) -> None:
    url = f"{VCS}{VirtualCluster.objects.unscoped().get(name='vision-a').pk}/"
    job = make_job("alice")

    problem(api("root").delete(url), 409)
    api("alice").post(f"/api/v1/jobs/{job.pk}/stop/", {})

    assert api("root").delete(url).status_code == 204


# Imports


def test_a_dry_run_reports_what_an_import_would_do_and_does_nothing(api: Any) -> None:
    url = f"{IMPORT}?dry_run=1&owner=robots=vision"

    response = api("root").post(url, HIVED, content_type="application/yaml")

    body = response.json()
    assert response.status_code == 200, body
    assert body["dry_run"] is True
    assert body["nodes_created"] == ["10.0.0.1", "10.0.0.2"]
    assert body["virtual_clusters_created"] == ["robots"]
    assert {"spec", "warnings", "unsupported"} <= body.keys()
    assert Node.objects.filter(name="10.0.0.1").count() == 0
    assert Topology.objects.count() == 1


def test_the_dry_run_of_an_import_works_while_jobs_hold_devices(
    api: Any, problem: Problem
) -> None:
    job = make_job("alice")
    start(job)
    root = api("root")

    tried = root.post(f"{IMPORT}?dry_run=1", HIVED, content_type="application/yaml")
    refused = problem(root.post(IMPORT, HIVED, content_type="application/yaml"), 409)

    (conflict,) = tried.json()["conflicts"]
    assert tried.status_code == 200
    assert (tried.json()["devices_removed"], conflict["code"]) == (24, "devices-in-use")
    assert refused["code"] == "devices-in-use"
    assert conflict == {"code": "devices-in-use", **refused["errors"][0]}
    assert Topology.objects.count() == 1


def test_an_import_makes_the_cluster_what_the_document_says(api: Any) -> None:
    url = f"{IMPORT}?owner=robots=vision"

    body = api("root").post(url, HIVED, content_type="application/yaml").json()

    assert body["dry_run"] is False
    assert body["virtual_clusters_archived"] == ["language-a"]
    robots = VirtualCluster.objects.unscoped().get(name="robots")
    assert robots.tenant.name == "vision"


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (HIVED.replace("cellNumber: 1", "cellNumber: 0", 1), "virtualClusters"),
        (HIVED.replace("childCellNumber: 4", "childCellNumber: many"), "physicalCluster"),
        ("virtualClusters: {}", "physicalCluster"),
        ("physicalCluster: [", ""),
    ],
)
def test_a_malformed_import_changes_nothing(
    api: Any, problem: Problem, text: str, field: str
) -> None:
    response = api("root").post(IMPORT, text, content_type="application/yaml")

    assert problem(response, 400)["errors"][0]["field"].startswith(field)
    assert Topology.objects.count() == 1
    assert VirtualCluster.objects.unscoped().filter(archived_at=None).count() == 2


def test_only_a_cluster_admin_imports(api: Any, problem: Problem) -> None:
    problem(api("lena").post(IMPORT, HIVED, content_type="application/yaml"), 403)
    response = api("root").post(f"{IMPORT}?owner=robots", HIVED, content_type="application/yaml")
    assert problem(response, 400)["errors"][0]["field"] == "owner"


def test_an_openpai_job_is_translated_without_being_submitted(api: Any) -> None:
    response = api("alice").post(f"{JOBS}?dry_run=1", OPENPAI)

    body = response.json()
    assert response.status_code == 200, body
    assert body["spec"]["virtual_cluster"] == "vision-a"
    assert isinstance(body["warnings"], list)
    assert isinstance(body["unsupported"], list)
    assert body["job"] is None
    assert not Job.objects.unscoped().exists()


def test_an_openpai_job_is_translated_and_submitted(api: Any) -> None:
    response = api("alice").post(JOBS, OPENPAI)

    assert response.status_code == 201
    assert Job.objects.unscoped().get().pk == response.json()["job"]["id"]


@pytest.mark.parametrize("name", ["lsf", "pbs", "native"])
def test_a_format_without_an_importer_names_those_that_work(
    api: Any, problem: Problem, name: str
) -> None:
    body = problem(api("alice").post(f"/api/v1/import/{name}/", {}), 400)

    assert body["code"] == "unsupported-format"
    assert "openpai" in body["errors"][0]["remedy"]


def test_a_malformed_openpai_job_is_refused(api: Any, problem: Problem) -> None:
    problem(api("alice").post(JOBS, {**OPENPAI, "taskRoles": {}}), 400)
    assert not Job.objects.unscoped().exists()


def test_the_pinned_cell_of_an_openpai_job_must_be_there(api: Any, problem: Problem) -> None:
    extras = {"hivedScheduler": {"taskRoles": {"worker": {"pinnedCellId": "lab"}}}}

    body = problem(api("alice").post(JOBS, {**OPENPAI, "extras": extras}), 400)
    pin_cell("vision-a", "lab", "node-2/0")
    accepted = api("alice").post(JOBS, {**OPENPAI, "extras": extras})

    (fault,) = body["errors"]
    assert (fault["field"], fault["value"]) == ("roles.worker.pinned_cell", "lab")
    assert accepted.status_code == 201
    job = Job.objects.unscoped().get()
    assert job.spec["roles"]["worker"]["pinned_cell"] == "lab"
    assert job.demand["members"][0][-1] == "lab"


# Rounds


def test_rounds_come_newest_first_with_what_the_ticker_reads(api: Any, problem: Problem) -> None:
    for number in range(1, 4):
        Round.objects.create(
            number=number, started_at=NOW, committed_at=timezone.now(), duration_ms=12.5,
            policies=["fifo"], fallbacks=["vision-a: slow"],
        )  # fmt: skip

    first = api("alice").get(ROUNDS, {"limit": 2}).json()
    rest = api("alice").get(ROUNDS, {"limit": 2, "cursor": first["next_cursor"]}).json()
    one = api("alice").get(f"{ROUNDS}2/").json()

    assert [row["number"] for row in (*first["results"], *rest["results"])] == [3, 2, 1]
    assert (one["duration_ms"], one["policies"]) == (12.5, ["fifo"])
    assert one["committed_at"]
    assert one["fallbacks"] == []
    assert api("root").get(f"{ROUNDS}2/").json()["fallbacks"] == ["vision-a: slow"]
    problem(api("alice").get(f"{ROUNDS}99/"), 404)


# Audit


def test_a_lead_reads_the_audit_of_the_own_tenant(api: Any, problem: Problem) -> None:
    make_job("alice")
    make_job("bob", virtual_cluster="language-a")

    rows = api("lena").get(AUDIT, {"action": "job."}).json()["results"]

    assert {row["tenant"] for row in rows} == {"vision"}
    assert rows[0]["actor"] == "alice"
    assert len(api("root").get(AUDIT, {"action": "job.submit"}).json()["results"]) == 2
    problem(api("alice").get(AUDIT), 403)
    problem(api("lena", Scope.JOBS_READ).get(AUDIT), 403)
    problem(api("lena").get(AUDIT, {"tenant": "language"}), 404)


def test_the_audit_comes_page_by_page(api: Any, problem: Problem) -> None:
    first = api("root").get(AUDIT, {"limit": 2}).json()
    second = api("root").get(AUDIT, {"limit": 2, "cursor": first["next_cursor"]}).json()

    ids = [row["id"] for row in (*first["results"], *second["results"])]
    assert ids == sorted(ids, reverse=True)
    assert len(set(ids)) == 4
    problem(api("root").get(AUDIT, {"cursor": "x"}), 400)


def _occupants(body: dict[str, Any]) -> list[dict[str, Any]]:
    devices = [device for node in body["nodes"] for device in node["devices"]]
    return [device["occupant"] for device in devices if device["occupant"]]
