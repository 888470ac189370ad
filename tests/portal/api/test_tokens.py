"""``/api/v1/tokens/``: made with a password, shown once, ended at once."""

import base64
import re
from collections.abc import Callable
from typing import Any

import pytest
from rest_framework.test import APIClient

from tenants.models import ApiToken
from tenants.roles import Scope
from tenants.throttling import FREE_OF_PAIR
from tests.factories.tenants import PASSWORD

URL = "/api/v1/tokens/"
WANTED = {"name": "ci", "scopes": ["jobs:read"]}


def basic(username: str, password: str = PASSWORD) -> APIClient:
    pair = base64.b64encode(f"{username}:{password}".encode()).decode()
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Basic {pair}")
    return client


def test_a_name_and_a_password_make_a_token_that_opens_the_api(world: Any) -> None:
    made = basic("alice").post(URL, {**WANTED, "expires_in_days": 7, "tenant": "vision"})

    assert made.status_code == 201
    body = made.json()
    assert {"id", "key", "prefix", "scopes", "expires_at"} <= body.keys()
    assert (body["scopes"], body["tenant"]) == (["jobs:read"], "vision")
    assert "no-store" in made.headers["Cache-Control"]
    script = APIClient()
    script.credentials(HTTP_AUTHORIZATION=f"Token {body['key']}")
    assert script.get("/api/v1/jobs/").status_code == 200


def test_a_wrong_password_is_refused_and_asks_for_another(
    world: Any, problem: Callable[..., Any]
) -> None:
    response = basic("alice", "wrong").post(URL, WANTED)

    problem(response, 401)
    assert response.headers["WWW-Authenticate"].startswith("Basic")


def test_guessing_passwords_is_stopped_even_for_the_right_one(
    world: Any, problem: Callable[..., Any]
) -> None:
    for _ in range(FREE_OF_PAIR):
        basic("alice", "wrong").post(URL, WANTED)

    throttled = basic("alice").post(URL, WANTED)
    body = problem(throttled, 429)
    assert (body["code"], int(throttled.headers["Retry-After"]) > 0) == ("throttled", True)
    assert re.fullmatch(r"Try again in \d+ s\.", body["errors"][0]["remedy"])
    assert not ApiToken.objects.exists()


def test_a_password_opens_nothing_but_the_making_of_tokens(
    world: Any, problem: Callable[..., Any]
) -> None:
    problem(basic("alice").get(URL), 401)
    problem(basic("alice").get("/api/v1/jobs/"), 401)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": 5}, "name"),
        ({"scopes": []}, "scopes"),
        ({"scopes": ["jobs:all"]}, "scopes"),
        ({"scopes": "jobs:read"}, "scopes"),
        ({"scopes": ["nodes:admin"]}, "scopes"),
        ({"expires_in_days": 0}, "expires_in_days"),
        ({"expires_in_days": 10**12}, "expires_in_days"),
        ({"expires_in_days": "soon"}, "expires_in_days"),
        ({"tenant": "language"}, "tenant"),
        ({"tenant": 10**9}, "tenant"),
        ({"tenant": ["vision"]}, "tenant"),
        ({"owner": "bob"}, "owner"),
    ],
)
def test_what_a_token_refuses_is_named(
    world: Any, problem: Callable[..., Any], change: dict[str, Any], field: str
) -> None:
    body = problem(basic("alice").post(URL, {**WANTED, **change}), 400)

    assert field in [fault["field"] for fault in body["errors"]]
    assert all(fault["remedy"] for fault in body["errors"])
    assert not ApiToken.objects.exists()


def test_a_token_makes_no_tokens(api: Any, problem: Callable[..., Any]) -> None:
    problem(api("alice", Scope.JOBS_READ).post(URL, WANTED), 403)


def test_tokens_are_listed_page_by_page_without_their_keys(api: Any) -> None:
    for number in range(3):
        basic("alice").post(URL, {**WANTED, "name": f"ci {number}"})

    first = api("alice").get(URL, {"limit": 2}).json()
    second = api("alice").get(URL, {"limit": 2, "cursor": first["next_cursor"]}).json()

    names = [row["name"] for row in (*first["results"], *second["results"])]
    assert names == ["ci 0", "ci 1", "ci 2"]
    assert second["next_cursor"] is None
    assert "key" not in first["results"][0]


def test_a_revoked_token_opens_nothing(api: Any, problem: Callable[..., Any]) -> None:
    made = basic("alice").post(URL, WANTED).json()

    assert api("alice").delete(f"{URL}{made['id']}/").status_code == 204

    script = APIClient()
    script.credentials(HTTP_AUTHORIZATION=f"Token {made['key']}")
    problem(script.get("/api/v1/jobs/"), 401)


def test_somebody_elses_token_is_not_there(api: Any, problem: Callable[..., Any]) -> None:
    made = basic("alice").post(URL, WANTED).json()

    problem(api("bob").delete(f"{URL}{made['id']}/"), 404)
    assert api("bob").get(URL).json()["results"] == []
