"""Tenants, members, users and priority classes: who may change what, and what is refused."""

import base64
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from rest_framework.test import APIClient

from scheduling.clusters.models import PriorityClass
from tenants.models import Membership, Tenant, User
from tenants.roles import Scope
from tests.factories.tenants import PASSWORD, make_user

TENANTS, MEMBERS = "/api/v1/tenants/", "/api/v1/members/"
USERS, CLASSES = "/api/v1/users/", "/api/v1/priority-classes/"
LINKS = "/api/v1/password-links/"
NEW = "another long sentence"
Problem = Callable[..., Any]


def names(response: Any, field: str = "name") -> list[str]:
    return [row[field] for row in response.json()["results"]]


# Tenants


def test_people_see_their_tenants_and_admins_all(api: Any) -> None:
    assert names(api("alice").get(TENANTS)) == ["vision"]
    assert names(api("root").get(TENANTS)) == ["vision", "language"]


def test_another_tenant_is_not_there(api: Any, world: Any, problem: Problem) -> None:
    url = f"{TENANTS}{world.language.pk}/"

    problem(api("alice").get(url), 404)
    problem(api("alice").patch(url, {"note": "x"}), 404)
    problem(api("lena").post(f"{url}archive/", {}), 404)


def test_an_admin_makes_changes_archives_and_restores_a_tenant(api: Any) -> None:
    client = api("root")

    made = client.post(TENANTS, {"name": "robots", "display_name": "Robots"})
    url = f"{TENANTS}{made.json()['id']}/"
    changed = client.patch(url, {"note": "arms"})
    archived = client.post(f"{url}archive/", {})
    restored = client.post(f"{url}restore/", {})

    assert made.status_code == 201
    assert made.headers["ETag"] == '"1"'
    assert changed.json()["note"] == "arms"
    assert archived.json()["archived_at"]
    assert restored.json()["archived_at"] is None


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "name"),
        ({"name": "UPPER"}, "name"),
        ({"name": 5}, "name"),
        ({"name": "ok", "display_name": "x" * 81}, "display_name"),
        ({"name": "ok", "note": "x" * 2001}, "note"),
        ({"name": "ok", "colour": "red"}, "colour"),
    ],
)
def test_what_a_tenant_refuses_is_named(
    api: Any, problem: Problem, body: dict[str, Any], field: str
) -> None:
    faults = problem(api("root").post(TENANTS, body), 400)["errors"]

    assert [fault["field"] for fault in faults] == [field]
    assert Tenant.objects.unscoped().count() == 2


def test_a_lead_makes_no_tenants_and_a_name_is_taken_once(api: Any, problem: Problem) -> None:
    problem(api("lena").post(TENANTS, {"name": "robots"}), 403)
    assert problem(api("root").post(TENANTS, {"name": "vision"}), 409)["code"] == "duplicate"


def test_of_two_admins_who_edit_a_tenant_the_second_gets_an_error(
    api: Any, world: Any, problem: Problem
) -> None:
    url = f"{TENANTS}{world.vision.pk}/"
    tag = api("root").get(url).headers["ETag"]

    api("root").patch(url, {"note": "first"}, HTTP_IF_MATCH=tag)
    problem(api("root").patch(url, {"note": "second"}, HTTP_IF_MATCH=tag), 412)

    assert api("root").get(url).json()["note"] == "first"


# Members


def test_a_lead_handles_the_members_of_the_own_tenant(api: Any) -> None:
    make_user("carol")
    client = api("lena")

    made = client.post(MEMBERS, {"tenant": "vision", "username": "carol", "max_devices": 4})
    url = f"{MEMBERS}{made.json()['id']}/"
    changed = client.patch(url, {"role": "viewer", "max_devices": None})

    assert made.status_code == 201
    assert (changed.json()["role"], changed.json()["max_devices"]) == ("viewer", None)
    assert client.delete(url).status_code == 204
    assert not Membership.objects.unscoped().filter(user__username="carol").exists()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"username": "nobody"}, "username"),
        ({"username": 5}, "username"),
        ({"role": "king"}, "role"),
        ({"max_devices": 0}, "max_devices"),
        ({"max_devices": "2"}, "max_devices"),
        ({"tenant": None}, "tenant"),
        ({"cap": 2}, "cap"),
    ],
)
def test_what_a_member_refuses_is_named(
    api: Any, problem: Problem, change: dict[str, Any], field: str
) -> None:
    make_user("carol")
    body = {"tenant": "vision", "username": "carol", **change}

    faults = problem(api("lena").post(MEMBERS, body), 400)["errors"]

    assert field in [fault["field"] for fault in faults]


def test_members_of_another_tenant_are_not_there(api: Any, problem: Problem) -> None:
    bob = Membership.objects.unscoped().get(user__username="bob")

    assert "bob" not in names(api("lena").get(MEMBERS), "username")
    problem(api("lena").get(MEMBERS, {"tenant": "language"}), 404)
    problem(api("lena").get(f"{MEMBERS}{bob.pk}/"), 404)
    problem(api("lena").patch(f"{MEMBERS}{bob.pk}/", {"role": "viewer"}), 404)
    problem(api("lena").delete(f"{MEMBERS}{bob.pk}/"), 404)
    body = {"tenant": "language", "username": "alice"}
    problem(api("lena").post(MEMBERS, body), 404)


def test_a_member_changes_no_members(api: Any, problem: Problem) -> None:
    vera = Membership.objects.unscoped().get(user__username="vera")

    problem(api("alice").patch(f"{MEMBERS}{vera.pk}/", {"role": "lead"}), 403)
    problem(api("lena", Scope.JOBS_READ).patch(f"{MEMBERS}{vera.pk}/", {"role": "lead"}), 403)


def test_of_two_leads_who_edit_a_member_the_second_is_told(api: Any, problem: Problem) -> None:
    vera = Membership.objects.unscoped().get(user__username="vera")
    url = f"{MEMBERS}{vera.pk}/"
    tag = api("lena").get(url).headers["ETag"]

    api("lena").patch(url, {"max_devices": 1}, HTTP_IF_MATCH=tag)

    problem(api("root").patch(url, {"max_devices": 2}, HTTP_IF_MATCH=tag), 412)


def test_the_last_lead_stays(api: Any, problem: Problem) -> None:
    lena = Membership.objects.unscoped().get(user__username="lena")

    body = problem(api("lena").patch(f"{MEMBERS}{lena.pk}/", {"role": "member"}), 409)

    assert body["code"] == "last-lead"


def test_a_member_is_limited_to_some_virtual_clusters(api: Any, problem: Problem) -> None:
    alice = Membership.objects.unscoped().get(user__username="alice")
    url = f"{MEMBERS}{alice.pk}/limits/"

    limited = api("lena").put(url, {"virtual_clusters": ["vision-a"]})

    assert limited.json() == {"virtual_clusters": ["vision-a"]}
    problem(api("lena").put(url, {"virtual_clusters": ["language-a"]}), 400)


def test_limits_of_live_jobs_are_set_for_cluster_tenant_and_member(
    api: Any, world: Any, problem: Problem
) -> None:
    cluster = "/api/v1/job-limits/cluster/"
    tenant = f"{TENANTS}{world.vision.pk}/job-limits/"
    alice = Membership.objects.unscoped().get(user__username="alice")
    member = f"{MEMBERS}{alice.pk}/job-limit/"

    problem(api("lena").put(cluster, {"per_person": 1, "per_tenant": 1}), 403)
    api("root").put(cluster, {"per_person": 5, "per_tenant": 50})
    problem(api("lena").put(tenant, {"per_person": 2, "per_tenant": 3}), 403)
    problem(api("bob").get(tenant), 404)
    problem(api("lena").put(member, {"per_person": 0}), 400)
    set_ = api("lena").put(tenant, {"per_person": 2, "per_tenant": None}).json()
    raised = api("lena").put(member, {"per_person": 3}).json()

    members = set_.pop("members")
    assert set_ == {
        "per_person": 2, "per_tenant": None, "effective_per_person": 2,
        "effective_per_tenant": 50, "source_per_person": "tenant",
        "source_per_tenant": "cluster", "live": 0,
    }  # fmt: skip
    of_member = {"effective_per_person": 3, "source_per_person": "member", "live": 0}
    assert raised == {"per_person": 3, **of_member}
    assert {
        "id": alice.pk, "username": "alice", "per_person": None, "effective_per_person": 2,
        "source_per_person": "tenant", "live": 0,
    } in members  # fmt: skip
    job = {
        "name": "x",
        "virtual_cluster": "vision-a",
        "roles": {"worker": {"instances": 1, "devices": 1, "command": "true"}},
    }
    assert api("alice").post("/api/v1/jobs/bulk/", [job] * 3).status_code == 201
    refused = problem(api("alice").post("/api/v1/jobs/", job), 409)
    assert refused["code"] == "job-limit-reached"
    assert "exceed the limit of 3 per person" in refused["errors"][0]["message"]
    assert api("alice").get(member).json()["live"] == 3
    listed = api("root").get(cluster).json()["tenants"]
    assert {one["tenant"]: one["live"] for one in listed} == {"language": 0, "vision": 3}
    assert [one["tenant"] for one in api("alice").get(cluster).json()["tenants"]] == ["vision"]


# Users


def test_an_admin_makes_people_who_can_sign_in(api: Any) -> None:
    body = {"username": "carol", "password": PASSWORD, "email": "carol@example.org"}

    made = api("root").post(USERS, body)

    assert made.status_code == 201
    assert PASSWORD.encode() not in made.content
    assert User.objects.get(username="carol").check_password(PASSWORD)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"username": ""}, "username"),
        ({"username": "a b"}, "username"),
        ({"password": "short"}, "password"),
        ({"password": 12345678}, "password"),
        ({"email": "nowhere"}, "email"),
        ({"first_name": "x" * 151}, "first_name"),
        ({"is_cluster_admin": "yes"}, "is_cluster_admin"),
        ({"is_superuser": True}, "is_superuser"),
    ],
)
def test_what_a_user_refuses_is_named_and_no_password_is_repeated(
    api: Any, problem: Problem, change: dict[str, Any], field: str
) -> None:
    body = {"username": "carol", "password": PASSWORD, **change}

    faults = problem(api("root").post(USERS, body), 400)["errors"]

    assert field in [fault["field"] for fault in faults]
    assert all(fault["value"] is None for fault in faults if fault["field"] == "password")
    assert not User.objects.filter(username="carol").exists()


def test_others_make_and_change_no_people(api: Any, problem: Problem) -> None:
    alice, bob = User.objects.get(username="alice"), User.objects.get(username="bob")

    problem(api("lena").post(USERS, {"username": "carol"}), 403)
    problem(api("lena").patch(f"{USERS}{alice.pk}/", {"is_active": False}), 403)
    problem(api("lena").get(f"{USERS}{bob.pk}/"), 404)


def test_people_see_those_of_their_tenants_without_addresses(api: Any) -> None:
    User.objects.filter(username="lena").update(email="lena@example.org")

    rows = api("alice").get(USERS).json()["results"]

    assert {row["username"] for row in rows} == {"alice", "lena", "vera"}
    assert {row["email"] for row in rows} == {""}


def test_a_person_is_kept_out_and_let_in(api: Any) -> None:
    url = f"{USERS}{User.objects.get(username='bob').pk}/"

    assert api("root").patch(url, {"is_active": False}).json()["is_active"] is False
    assert api("root").patch(url, {"is_active": True}).json()["is_active"] is True


def test_a_token_makes_no_admins(api: Any, problem: Problem) -> None:
    url = f"{USERS}{User.objects.get(username='bob').pk}/"

    problem(api("root", Scope.TENANT_ADMIN).patch(url, {"is_cluster_admin": True}), 403)
    assert api("root").patch(url, {"is_cluster_admin": True}).json()["is_cluster_admin"] is True


def test_one_changes_ones_own_password_with_the_current_one(api: Any, problem: Problem) -> None:
    alice = User.objects.get(username="alice")
    url = f"{USERS}{alice.pk}/password/"
    new = "a new and longer one"

    problem(api("alice").post(url, {"password": new, "current_password": "wrong"}), 400)
    problem(api("root").post(url, {"password": new, "current_password": PASSWORD}), 403)
    changed = api("alice").post(url, {"password": new, "current_password": PASSWORD})

    assert changed.status_code == 204
    alice.refresh_from_db()
    assert alice.check_password(new)


def test_no_token_sets_a_password_or_creates_a_link(api: Any, problem: Problem) -> None:
    script = api("root", Scope.TENANT_ADMIN)
    alice = User.objects.get(username="alice")

    refused = problem(script.post(f"{USERS}{alice.pk}/password/", {"password": NEW}), 403)
    problem(script.post(LINKS, {"username": "alice"}), 403)
    problem(script.post(USERS, {"username": "carol", "password": NEW}), 403)

    assert "password link" in refused["errors"][0]["remedy"]
    assert not User.objects.filter(username="carol").exists()
    alice.refresh_from_db()
    assert alice.check_password(PASSWORD)


def test_an_admin_gets_a_link_with_which_a_person_chooses_a_password(
    api: Any, problem: Problem
) -> None:
    made = api("root").post(LINKS, {"username": "alice"})
    body = made.json()
    path = body["url"].removeprefix("http://testserver")
    person = Client()

    assert made.status_code == 201
    assert "no-store" in made.headers["Cache-Control"]
    assert person.get(path).headers["Referrer-Policy"] == "no-referrer"
    weak = person.post(path, {"password": "alicealice1", "repeated": "alicealice1"})
    differs = person.post(path, {"password": NEW, "repeated": NEW + "x"})
    chosen = person.post(path, {"password": NEW, "repeated": NEW})

    assert (weak.status_code, differs.status_code) == (422, 422)
    assert "alicealice1" not in weak.content.decode()
    assert chosen.headers["Location"] == "/login/"
    assert User.objects.get(username="alice").check_password(NEW)
    assert person.get(path).status_code == 404
    assert person.post(path, {"password": NEW, "repeated": NEW}).status_code == 404


def test_a_link_is_created_with_name_and_password_too(api: Any, problem: Problem) -> None:
    def basic(name: str) -> APIClient:
        pair = base64.b64encode(f"{name}:{PASSWORD}".encode()).decode()
        client = APIClient()
        client.credentials(HTTP_AUTHORIZATION=f"Basic {pair}")
        return client

    assert basic("root").post(LINKS, {"username": "alice"}).status_code == 201
    problem(basic("lena").post(LINKS, {"username": "alice"}), 403)
    problem(basic("root").post(LINKS, {"username": "nobody"}), 404)
    problem(APIClient().post(LINKS, {"username": "alice"}), 401)


def test_i_am_told_who_i_am_and_what_my_token_allows(api: Any) -> None:
    me = api("alice").get(f"{USERS}me/").json()
    script = api("alice", Scope.JOBS_READ).get(f"{USERS}me/").json()

    assert (me["username"], me["scopes"]) == ("alice", None)
    assert [(t["name"], t["role"]) for t in me["tenants"]] == [("vision", "member")]
    assert script["scopes"] == ["jobs:read"]


# Priority classes


def test_an_admin_handles_priority_classes_and_everybody_sees_them(api: Any) -> None:
    made = api("root").post(CLASSES, {"name": "night", "value": 5})
    url = f"{CLASSES}{made.json()['id']}/"
    changed = api("root").patch(url, {"is_default": True})

    assert made.status_code == 201
    assert changed.json()["is_default"] is True
    assert PriorityClass.objects.filter(is_default=True).count() == 1
    assert "night" in names(api("bob").get(CLASSES))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "A B"}, "name"),
        ({"value": 1001}, "value"),
        ({"value": -2}, "value"),
        ({"value": True}, "value"),
        ({"value": None}, "value"),
        ({"note": "x" * 201}, "note"),
        ({"is_default": 1}, "is_default"),
        ({"weight": 2}, "weight"),
    ],
)
def test_what_a_class_refuses_is_named(
    api: Any, problem: Problem, change: dict[str, Any], field: str
) -> None:
    body = {"name": "night", "value": 5, **change}

    faults = problem(api("root").post(CLASSES, body), 400)["errors"]

    assert field in [fault["field"] for fault in faults]
    assert not PriorityClass.objects.filter(name="night").exists()


def test_of_two_edits_of_one_class_the_second_is_a_named_conflict(
    api: Any, problem: Problem
) -> None:
    url = f"{CLASSES}{PriorityClass.objects.get(name='crit').pk}/"
    tag = api("root").get(url).headers["ETag"]

    first = api("root").patch(url, {"value": 121}, HTTP_IF_MATCH=tag)
    second = problem(api("root").patch(url, {"value": 122}, HTTP_IF_MATCH=tag), 412)
    problem(api("root").delete(url, HTTP_IF_MATCH=tag), 412)

    assert (first.json()["version"], first.headers["ETag"]) == (2, '"2"')
    assert (second["code"], second["errors"][0]["field"]) == ("stale-edit", "version")
    assert PriorityClass.objects.get(name="crit").value == 121


def test_others_change_no_classes_and_the_default_stays(api: Any, problem: Problem) -> None:
    default = PriorityClass.objects.get(is_default=True)

    problem(api("lena").post(CLASSES, {"name": "night", "value": 5}), 403)
    problem(api("lena").delete(f"{CLASSES}{default.pk}/"), 403)
    problem(api("root").delete(f"{CLASSES}{default.pk}/"), 409)
    problem(api("root").get(f"{CLASSES}999/"), 404)
    other = PriorityClass.objects.get(name="crit")
    assert api("root").delete(f"{CLASSES}{other.pk}/").status_code == 204
