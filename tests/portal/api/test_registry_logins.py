"""``/api/v1/registry-logins/``: rights, refusals, and passwords that nothing returns."""

import json
from collections.abc import Callable

import pytest
from rest_framework.test import APIClient

from scheduling.clusters.models import RegistryLogin
from scheduling.secrets import unseal
from tenants.models import AuditEntry
from tenants.roles import Scope
from tests.portal.api.conftest import problem_of

URL = "/api/v1/registry-logins/"
PASSWORD = "s3cr3t-token"
LOGIN = {
    "tenant": "vision",
    "registry": "registry.example.org:5000",
    "username": "robot",
    "password": PASSWORD,
}
ApiFor = Callable[..., APIClient]


@pytest.mark.parametrize("username", ["lena", "root"])
def test_a_lead_sets_replaces_and_deletes_a_login_and_nobody_reads_its_password(
    api: ApiFor, username: str
) -> None:
    client = api(username)

    made = client.post(URL, LOGIN, format="json")
    again = client.post(URL, {**LOGIN, "username": "other"}, format="json")
    listed = client.get(URL)

    assert (made.status_code, again.status_code) == (201, 201)
    (row,) = listed.json()["results"]
    assert row | {"changed_at": ""} == {
        **{key: value for key, value in LOGIN.items() if key != "password"},
        "id": made.json()["id"],
        "username": "other",
        "changed_at": "",
    }
    stored = RegistryLogin.objects.unscoped().get()
    assert unseal(bytes(stored.sealed)) == PASSWORD
    assert PASSWORD.encode() not in bytes(stored.sealed)
    audit = [(one.before, one.after) for one in AuditEntry.objects.unscoped()]
    everything = [made.content, again.content, listed.content, json.dumps(audit).encode()]
    assert not [text for text in everything if PASSWORD.encode() in text]
    assert client.delete(f"{URL}{stored.pk}/").status_code == 204
    assert not RegistryLogin.objects.unscoped().exists()


@pytest.mark.parametrize(("username", "status"), [("alice", 403), ("vera", 403), ("bob", 404)])
def test_others_neither_set_nor_see_nor_delete_logins(
    api: ApiFor, username: str, status: int
) -> None:
    made = api("lena").post(URL, LOGIN, format="json").json()
    other = api(username)

    assert other.post(URL, LOGIN, format="json").status_code == status
    assert other.get(URL).json().get("results", []) == []
    assert other.delete(f"{URL}{made['id']}/").status_code in (403, 404)
    assert RegistryLogin.objects.unscoped().count() == 1


def test_a_token_without_the_scope_sets_no_login(api: ApiFor) -> None:
    assert api("lena", Scope.JOBS_WRITE).post(URL, LOGIN, format="json").status_code == 403


def test_all_faults_are_named_without_the_password(api: ApiFor) -> None:
    wrong = {"registry": "https://x/", "username": "a:b", "password": f"{PASSWORD}\n"}

    answer = api("lena").post(URL, {**LOGIN, **wrong}, format="json")

    body = problem_of(answer, 400)
    assert [error["field"] for error in body["errors"]] == ["registry", "username", "password"]
    assert PASSWORD not in answer.content.decode()
