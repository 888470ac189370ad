"""``/api/v1/storages/``: rights of each role, refusals with all faults, and versions."""

from collections.abc import Callable
from typing import Any

import pytest
from rest_framework.test import APIClient

from scheduling.clusters.models import Node, Storage
from tenants.models import AuditEntry
from tenants.roles import Scope
from tests.factories.cluster import make_job

URL = "/api/v1/storages/"
SETS = {"name": "sets", "source": "/srv/sets", "mount": "/data", "tenants": ["vision"]}
ApiFor = Callable[..., APIClient]


@pytest.fixture
def made(api: ApiFor) -> dict[str, Any]:
    answer = api("root").post(URL, SETS, format="json")
    assert answer.status_code == 201, answer.json()
    body: dict[str, Any] = answer.json()
    return body


def test_an_admin_creates_changes_and_deletes_a_storage(api: ApiFor, made: dict[str, Any]) -> None:
    root, address = api("root", Scope.NODES_ADMIN), f"{URL}{made['id']}/"
    probe = {"cause": "", "path": "/srv/sets", "total_bytes": 1000, "free_bytes": 400}
    Node.objects.filter(name="node-2").update(storages={"/srv/sets": probe})

    changed = root.patch(address, {"writable": True}, format="json", HTTP_IF_MATCH='"1"').json()
    late = root.patch(address, {"writable": False}, format="json", HTTP_IF_MATCH='"1"')

    assert (changed["writable"], changed["tenants"], changed["version"]) == (True, ["vision"], 2)
    assert [(one["node"], one["cause"]) for one in changed["nodes"]] == [
        *(("node-1", "unknown"), ("node-2", ""), ("node-3", "unknown")),
    ]
    assert (changed["usable_nodes"], changed["total_bytes"]) == (1, 1000)
    assert late.status_code == 412
    assert root.delete(address).status_code == 204
    assert not Storage.objects.exists()


@pytest.mark.parametrize("username", ["alice", "lena", "bob"])
def test_others_change_nothing(api: ApiFor, made: dict[str, Any], username: str) -> None:
    other, address = api(username), f"{URL}{made['id']}/"

    answers = [
        other.post(URL, {**SETS, "name": "mine"}, format="json"),
        other.patch(address, {"tenants": ["language"]}, format="json"),
        other.delete(address),
    ]

    assert [answer.status_code for answer in answers] == [403, 403, 403]
    assert AuditEntry.objects.unscoped().filter(action__startswith="storage.").count() == 1


def test_a_token_without_the_scope_defines_no_storage(api: ApiFor) -> None:
    answer = api("root", Scope.JOBS_WRITE).post(URL, SETS, format="json")

    assert answer.status_code == 403


def test_other_tenants_do_not_see_a_storage(api: ApiFor, made: dict[str, Any]) -> None:
    (seen,) = api("alice").get(URL).json()["results"]

    assert (seen["name"], seen["source"], seen["nodes"]) == ("sets", "", [])
    assert api("bob").get(URL).json()["results"] == []
    assert api("bob").get(f"{URL}{made['id']}/").status_code == 404


def test_all_faults_are_in_one_answer(
    api: ApiFor, problem: Callable[[Any, int], dict[str, Any]]
) -> None:
    wanted = {"name": "A b", "source": "/etc/ssh", "mount": "/data/../x"}

    body = problem(api("root").post(URL, wanted, format="json"), 400)

    assert {fault["field"] for fault in body["errors"]} == {"name", "source", "mount"}
    assert all(fault["remedy"] for fault in body["errors"])


def test_a_storage_that_a_queued_job_uses_is_not_deleted(
    api: ApiFor, made: dict[str, Any], problem: Callable[[Any, int], dict[str, Any]]
) -> None:
    document = {
        "name": "reads",
        "virtual_cluster": "vision-a",
        "roles": {"worker": {"command": "true"}},
        "storage": ["sets"],
    }
    job = make_job("alice", document)

    body = problem(api("root").delete(f"{URL}{made['id']}/"), 409)

    assert job.spec["storage"] == [{"name": "sets", "mount": "/data", "read_only": True}]
    assert "1 queued or running job uses storage sets" in body["errors"][0]["message"]
