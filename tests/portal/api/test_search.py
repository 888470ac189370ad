"""Search by REST: rights of the lists, bounded results and queries, and prefixes."""

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from portal.guides import found_in_guides, guides
from tenants.models import User
from tenants.roles import Scope
from tests.factories.cluster import job_document, make_job
from tests.factories.scheduling import make_many_jobs
from tests.factories.tenants import make_token
from tests.support.cluster_pages import Stage, make_stage, sign_in

pytestmark = pytest.mark.django_db


@pytest.fixture
def stage() -> Stage:
    return make_stage()


def found(client: Client, text: str) -> list[tuple[str, str]]:
    response = client.get("/api/v1/search/", {"q": text})
    assert response.status_code == 200, response.content
    return [(one["kind"], one["name"]) for one in response.json()["results"]]


def test_each_kind_is_found_by_a_part_of_its_name(client: Client, stage: Stage) -> None:
    alice = sign_in(client, "alice")

    assert ("job", "train-a") in found(alice, "RAIN-A")
    assert ("virtual-cluster", "vision-a") in found(alice, "vision")
    assert ("node", "node-2") in found(alice, "node-")
    assert ("person", "lena") in found(alice, "len")
    assert "document" in {kind for kind, _ in found(alice, "storage")}


def test_only_what_the_lists_show_is_found(client: Client, stage: Stage) -> None:
    alice = sign_in(client, "alice")

    assert found(alice, "secret-name") == []
    assert "secret-name" not in {name for _, name in found(alice, str(stage.foreign.pk))}
    assert found(alice, f"#{stage.foreign.pk}") == []
    assert not [one for one in found(alice, "language-a") if one[0] == "virtual-cluster"]
    assert found(alice, "@bob") == []
    assert ("job", "secret-name") in found(sign_in(Client(), "root"), "secret")


def test_a_token_finds_only_what_its_scopes_allow(client: Client, stage: Stage) -> None:
    root = User.objects.get(username="root")
    token = make_token(root, Scope.NODES_ADMIN, now=timezone.now())

    response = client.get(
        "/api/v1/search/", {"q": "train"}, headers={"Authorization": f"Token {token.key}"}
    )

    assert [one for one in response.json()["results"] if one["kind"] == "job"] == []


def test_prefixes_limit_the_search(client: Client, stage: Stage) -> None:
    alice = sign_in(client, "alice")

    assert found(alice, f"#{stage.running.pk}") == [("job", "train-a")]
    assert found(alice, "# no number") == []
    assert {kind for kind, _ in found(alice, "@a")} == {"person"}
    assert found(alice, "") == found(alice, "@ ") == []


def test_an_id_comes_first(client: Client, stage: Stage) -> None:
    make_job("alice", job_document(name=f"about-{stage.running.pk}"))

    names = [name for kind, name in found(sign_in(client, "alice"), str(stage.running.pk))]

    assert names[0] == "train-a"


def test_hostile_texts_are_only_texts(client: Client, stage: Stage) -> None:
    alice = sign_in(client, "alice")

    for text in ("%", "_", "'", '"; drop table', "９", "9" * 40, "x=y", "#" * 40):
        found(alice, text)
    for text in ("a" * 81, "\x00"):
        assert client.get("/api/v1/search/", {"q": text}).status_code == 400
    assert Client().get("/api/v1/search/", {"q": "a"}).status_code == 401


def test_results_and_queries_are_bounded(
    client: Client, stage: Stage, django_assert_max_num_queries: Any
) -> None:
    make_many_jobs(40, owner="alice", virtual_cluster=stage.vision_a, tenant=stage.vision)
    alice = sign_in(client, "alice")
    found(alice, "a")

    with django_assert_max_num_queries(11):
        results = found(alice, "a")

    kinds = [kind for kind, _ in results]
    assert max(kinds.count(kind) for kind in set(kinds)) <= 6


def test_documents_are_pages(client: Client, stage: Stage) -> None:
    alice = sign_in(client, "alice")
    (guide, section), *_ = found_in_guides("storage", most=1)

    assert guides()[0].title in alice.get("/docs/").content.decode()
    html = alice.get(f"/docs/{guide.name}/").content.decode()
    assert f'id="s{section.number}"' in html
    assert alice.get("/docs/no-such/").status_code == 404
    assert alice.get("/docs/..%2Fsettings/").status_code == 404
