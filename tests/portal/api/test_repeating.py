"""Tokens, webhooks and announcements with an ``Idempotency-Key``: sent twice, made once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from django.test import Client

from tenants.models import FormToken
from tests.portal.api.conftest import ApiFor
from tests.support.cluster_pages import make_stage, sign_in
from tests.support.databases import at_once, migrated_template, real_database

__all__ = ["migrated_template", "real_database"]


@dataclass(frozen=True, kw_only=True)
class Making:
    """A request that makes something, what to change in it, and the secret of its answer."""

    address: str
    body: dict[str, Any]
    changed: dict[str, Any]
    secret: str = ""


MAKINGS = {
    "token": Making(
        address="/api/v1/tokens/",
        body={"name": "ci", "scopes": ["jobs:read"]},
        changed={"expires_in_days": 7},
        secret="key",
    ),
    "webhook": Making(
        address="/api/v1/webhooks/",
        body={"name": "chat", "url": "https://h.example.org/x", "events": ["job.failed"]},
        changed={"url": "https://h.example.org/y"},
        secret="secret",
    ),
    "announcement": Making(
        address="/api/v1/announcements/",
        body={"text": "Maintenance at noon"},
        changed={"severity": "warning"},
    ),
}


@pytest.fixture(params=MAKINGS)
def making(request: pytest.FixtureRequest) -> Making:
    return MAKINGS[request.param]


def rows(client: Any, making: Making) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get(making.address).json()["results"]
    return found


def test_the_same_sent_again_makes_nothing_and_tells_no_secret_again(
    api: ApiFor, making: Making, problem: Callable[..., Any]
) -> None:
    root = api("root")

    first = root.post(making.address, making.body, headers={"Idempotency-Key": "k1"})
    again = root.post(making.address, making.body, headers={"Idempotency-Key": "k1"})

    assert first.status_code == 201
    assert len(rows(root, making)) == 1
    if making.secret:
        refused = problem(again, 409)
        assert refused["code"] == "told-once"
        assert refused["errors"][0]["value"] == first.json()["id"]
        assert first.json()[making.secret] not in again.content.decode()
        kept = repr(list(FormToken.objects.values_list()))
        assert first.json()[making.secret] not in kept
    else:
        assert (again.status_code, again.json()) == (200, first.json())


def test_a_key_of_something_else_is_refused_and_makes_nothing(
    api: ApiFor, making: Making, problem: Callable[..., Any]
) -> None:
    root = api("root")
    root.post(making.address, making.body, headers={"Idempotency-Key": "k1"})

    changed = root.post(
        making.address, {**making.body, **making.changed}, headers={"Idempotency-Key": "k1"}
    )
    too_long = root.post(making.address, making.body, headers={"Idempotency-Key": "k" * 129})
    for other in MAKINGS.values():
        if other != making:
            elsewhere = root.post(other.address, other.body, headers={"Idempotency-Key": "k1"})
            assert problem(elsewhere, 409)["code"] == "idempotency-conflict"

    assert problem(changed, 409)["code"] == "idempotency-conflict"
    assert problem(too_long, 400)["code"] == "invalid"
    assert sum(len(rows(root, each)) for each in MAKINGS.values()) == 1


def test_what_is_refused_uses_no_key_up_and_keys_are_everybodys_own(
    api: ApiFor, making: Making
) -> None:
    root, lena = api("root"), api("lena")
    key: dict[str, Any] = {"headers": {"Idempotency-Key": "k1"}}

    assert (
        root.post(making.address, {**making.body, "name": "", "text": ""}, **key).status_code
        == 400
    )
    lena.post(MAKINGS["token"].address, MAKINGS["token"].body, **key)

    assert root.post(making.address, making.body, **key).status_code == 201
    assert root.post(making.address, making.body).status_code == 201
    assert len(rows(root, making)) == 2


def test_the_key_of_a_withdrawn_announcement_says_so_and_makes_no_other(
    api: ApiFor, problem: Callable[..., Any]
) -> None:
    root, made = api("root"), MAKINGS["announcement"]
    first = root.post(made.address, made.body, headers={"Idempotency-Key": "k1"}).json()
    root.delete(f"{made.address}{first['id']}/")

    again = root.post(made.address, made.body, headers={"Idempotency-Key": "k1"})

    refused = problem(again, 409)
    assert (refused["code"], refused["errors"][0]["value"]) == ("withdrawn", first["id"])
    assert rows(root, made) == []


@pytest.mark.usefixtures("real_database")
def test_of_two_requests_at_once_one_makes_something() -> None:
    make_stage(2)
    clients = [sign_in(Client(), "root") for _ in range(2)]

    for making in MAKINGS.values():

        def post(client: Client, making: Making = making) -> Any:
            key = {"Idempotency-Key": making.address}
            return client.post(
                making.address, making.body, content_type="application/json", headers=key
            )

        answers: list[Any] = at_once(*(lambda c=client: post(c) for client in clients))

        second = 409 if making.secret else 200
        assert sorted(answer.status_code for answer in answers) == sorted([201, second])
        assert len(rows(clients[0], making)) == 1
