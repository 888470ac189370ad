"""The page *Explain share* and its REST twin."""

import pytest
from django.test import Client

from tests.factories.tenants import make_user
from tests.support.cluster_pages import Stage, make_stage, read, sign_in, words_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def stage() -> Stage:
    return make_stage(3)


def test_a_member_reads_why_the_share_is_not_larger(client: Client, stage: Stage) -> None:
    sign_in(client, "alice")

    text = words_of(read(client, "/shares/"))

    for part in (
        "vision borrows 0 of the",
        "Its fair share is 0, by weight",
        "No waiting job of vision-a requests borrowed devices.",
        "Weights of all tenants",
        "Agrees",
    ):
        assert part in text, part
    assert "Differs" not in text
    assert "language" not in text


def test_an_admin_reads_all_virtual_clusters(client: Client, stage: Stage) -> None:
    sign_in(client, "root")

    text = words_of(read(client, "/shares/?span=now"))

    assert "vision-a" in text
    assert "language-a" in text


def test_the_twin_names_no_other_tenant(client: Client, stage: Stage) -> None:
    sign_in(client, "alice")

    response = client.get("/api/v1/shares/")
    body = response.json()

    assert [vc["name"] for vc in body["virtual_clusters"]] == ["vision-a"]
    assert [tenant["name"] for tenant in body["tenants"]] == ["vision"]
    assert "language" not in response.content.decode()
    assert "secret-name" not in response.content.decode()
    assert body["totals"]["devices"] == 24
    assert body["totals"]["used"] + body["totals"]["borrowed"] >= 6
    assert all(check["holds"] for check in body["checks"])
    assert client.get("/api/v1/shares/?span=99d").status_code == 400
    assert client.get("/shares/?span=99d").status_code == 200


def test_a_span_without_stored_rounds_is_empty(client: Client, stage: Stage) -> None:
    sign_in(client, "lena")

    text = words_of(read(client, "/shares/?span=1h"))

    assert "No stored rounds in this span" in text
    assert client.get("/api/v1/shares/?span=1h").json()["totals"] is None


def test_people_without_a_tenant_are_refused(client: Client, stage: Stage) -> None:
    make_user("carol")
    sign_in(client, "carol")

    assert client.get("/api/v1/shares/").status_code == 403
    assert client.get("/shares/").status_code == 403
