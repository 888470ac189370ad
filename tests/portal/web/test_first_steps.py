"""The card *Start here*, the glossary with its tooltips, and the reading order of documents."""

import re
from pathlib import Path

import pytest
from django.conf import settings
from django.template import Context, Template
from django.test import Client

from portal.guides import guides, reading_order
from portal.web.guides import TERMS, meaning
from tests.support.cluster_pages import make_stage, read, sign_in, words_of

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def stage() -> None:
    make_stage()


def steps_of(text: str) -> list[str]:
    """The addresses of the card's steps."""
    card = re.search(r'<ol class="in steps">(.*?)</ol>', text, re.DOTALL)
    return re.findall(r'href="([^"]+)"', card[1]) if card else []


def test_each_step_leads_to_a_page_that_its_reader_may_see(client: Client) -> None:
    for person, start in (("alice", "/mine/"), ("victor", "/mine/"), ("root", "/cluster/")):
        sign_in(client, person)
        steps = steps_of(read(client, start))

        assert len(steps) >= 4, person
        assert ("/submit/" in steps) == (person != "victor")
        for address in steps:
            assert client.get(address).status_code == 200, (person, address)


def test_the_card_stays_closed_in_this_browser(client: Client) -> None:
    sign_in(client, "alice")
    assert "Start here" in words_of(read(client, "/mine/"))

    assert client.get("/start/close/").status_code == 405
    client.post("/start/close/")

    assert "Start here" not in words_of(read(client, "/mine/"))
    assert "Start here" in words_of(read(_signed_in("victor"), "/mine/"))


def _signed_in(person: str) -> Client:
    other = Client()
    sign_in(other, person)
    return other


def test_the_glossary_has_the_terms_of_the_language_guide(client: Client) -> None:
    guide = (Path(settings.BASE_DIR) / "docs" / "style.md").read_text()
    known = " ".join(re.findall(r"^\| \**([^|]+?)\** \|", guide, re.MULTILINE))

    assert [term for term in TERMS if term not in known] == []
    sign_in(client, "victor")
    text = read(client, "/glossary/")
    for key in TERMS:
        assert meaning(key) in words_of(text)
        assert f'id="{key.replace(" ", "-")}"' in text


def test_a_term_shows_its_meaning_and_leads_to_the_glossary(client: Client) -> None:
    html = Template('{% load tessera %}{% term "queue position" "Position" %}').render(Context())

    assert 'href="/glossary/#queue-position"' in html
    assert f'title="{meaning("queue position")}"' in html
    sign_in(client, "alice")
    assert '/glossary/#guarantee"' in read(client, "/virtual-clusters/")


def test_documents_are_listed_once_for_each_reader_in_reading_order(client: Client) -> None:
    order = reading_order()

    assert [heading for heading, _ in order] == [
        "Researchers", "Team leads", "Cluster admins", "Developers",
    ]  # fmt: skip
    listed = [guide.name for _, part in order for guide in part]
    assert {guide.name for guide in guides()} - set(listed) == set()
    assert [guide.name for guide in order[0][1]][:2] == ["recipes", "job-spec"]
    sign_in(client, "victor")
    assert "/docs/recipes/" in read(client, "/docs/")
