"""The frame, the gallery and the error pages: complete, strict, without queries of their own."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.test import Client, RequestFactory
from django.urls import reverse
from django.utils import timezone

from portal.web import context, errors
from portal.web.components.states import JOB_STATES
from portal.web.frame import Frame, set_frame
from scheduling.rounds.queries import RoundTick
from tenants.models import User
from tests.factories.tenants import make_user

ROOT = Path(__file__).resolve().parents[3]
REPORTS = ROOT / "templates" / "reports"
"""Files that are read without a portal, under a content policy of their own."""
TEMPLATES = sorted(
    path for path in (ROOT / "templates").rglob("*.html") if REPORTS not in path.parents
)


@pytest.fixture
def gallery(client: Client, settings: pytest.FixtureRequest) -> str:
    settings.DEBUG = True  # type: ignore[attr-defined]
    response = client.get("/_components/")
    assert response.status_code == 200
    return response.content.decode()


@pytest.mark.django_db
def test_the_gallery_is_drawn_without_inline_style_or_script(gallery: str) -> None:
    assert " style=" not in gallery
    assert not re.search(r"<script(?![^>]*(src=|application/json))", gallery)
    assert not re.search(r"\son\w+=", gallery)


@pytest.mark.django_db
def test_the_gallery_has_one_heading_a_skip_link_and_unique_ids(gallery: str) -> None:
    ids = re.findall(r'\sid="([^"]+)"', gallery)

    assert gallery.count("<h1") == 1
    assert 'href="#main"' in gallery
    assert len(ids) == len(set(ids))


@pytest.mark.django_db
def test_every_job_state_is_shown_with_icon_and_word(gallery: str) -> None:
    for look in JOB_STATES.values():
        assert f"#{look.icon}" in gallery
        assert str(look.word) in gallery


@pytest.mark.django_db
def test_outside_of_debug_mode_there_is_no_gallery(client: Client) -> None:
    assert client.get("/_components/").status_code == 404


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_no_template_has_inline_style_script_or_handler(path: Path) -> None:
    text = path.read_text()

    assert " style=" not in text
    assert "<style" not in text
    assert not re.search(r"<script(?![^>]*(src=))", text)
    assert not re.search(r"\son[a-z]+=", text)
    assert "hx-on" not in text


def test_every_icon_that_templates_name_is_in_the_sprite() -> None:
    sprite = set(re.findall(r'symbol id="([\w-]+)"', (ROOT / "static/img/icons.svg").read_text()))
    named = {
        name for path in TEMPLATES for name in re.findall(r'{% icon "([\w-]+)"', path.read_text())
    }
    by_state = {look.icon for look in JOB_STATES.values()}
    by_nav = {item[2] for item in context.ITEMS}

    assert named | by_state | by_nav <= sprite


def test_every_static_file_that_templates_name_is_there() -> None:
    named = {
        name for path in TEMPLATES for name in re.findall(r"{% static '([^']+)'", path.read_text())
    }

    assert named
    assert all((ROOT / "static" / name).is_file() for name in named)


def test_no_style_sheet_but_the_tokens_names_a_colour() -> None:
    for sheet in (ROOT / "static/css").glob("*.css"):
        text = re.sub(r"/\*.*?\*/", "", sheet.read_text(), flags=re.DOTALL)
        assert not re.search(r"#[0-9a-fA-F]{3,8}\b(?!\w)", text), sheet.name
        assert not re.search(r"\b(rgb|hsl|oklch)a?\(", text), sheet.name


def test_every_custom_property_that_is_used_is_defined() -> None:
    sheets = [ROOT / "static/tokens.css", *(ROOT / "static/css").glob("*.css")]
    text = "\n".join(sheet.read_text() for sheet in sheets)
    defined = set(re.findall(r"(--[\w-]+)\s*:", text))

    assert set(re.findall(r"var\((--[\w-]+)", text)) <= defined


def test_the_ticker_turns_amber_after_two_intervals_and_red_after_three() -> None:
    def late(age: float) -> str:
        ticks = (RoundTick(number=1, seconds=0.4),)
        facts = Frame(rounds=ticks, round_age_seconds=age, round_seconds=10)
        return context.ticker(facts).late

    assert [late(19), late(25), late(31)] == ["", "warn", "bad"]


def test_the_frame_runs_no_query(rf: RequestFactory) -> None:
    request = rf.get("/somewhere/")
    request.user = SimpleNamespace(is_authenticated=False)  # type: ignore[assignment]
    set_frame(request, Frame(counts={"jobs": 3}, hidden=frozenset({"audit"})))

    found = context.frame(request)

    assert found["frame"].counts["jobs"] == 3
    assert all(item.url for item in found["nav"])
    assert found["server_time"] <= timezone.now()


def test_the_age_of_a_round_is_reported_in_whole_seconds() -> None:
    assert context.ticker(Frame(round_age_seconds=0.004)).age_seconds == 0
    assert context.ticker(Frame(round_age_seconds=7.9)).age_seconds == 7
    assert context.ticker(Frame()).age_seconds is None


@pytest.mark.parametrize(
    ("page", "item"), [("job-templates", "submit"), ("sweep-new", "jobs"), ("job-logs", "jobs")]
)
def test_the_navigation_shows_below_which_item_a_page_stands(page: str, item: str) -> None:
    request = RequestFactory().get("/")
    request.resolver_match = SimpleNamespace(url_name=page)  # type: ignore[assignment]

    lit = [one.url for one in context.navigation(request, Frame()) if one.active]

    assert lit == [reverse(item)]


def test_a_cookie_gives_the_theme_of_somebody_who_is_not_signed_in(rf: RequestFactory) -> None:
    request = rf.get("/")
    request.COOKIES["theme"] = "dark"
    assert context.frame(request)["theme"] == "dark"

    request.COOKIES["theme"] = '"><script>'
    assert context.frame(request)["theme"] == ""


@pytest.mark.django_db
def test_the_theme_is_kept_by_post_only(client: Client) -> None:
    kept = client.post("/theme/", {"theme": "dark"})

    assert kept.status_code == 204
    assert kept.cookies["theme"].value == "dark"
    assert client.get("/theme/").status_code == 405
    assert client.post("/theme/", {"theme": "pink"}).status_code == 400


@pytest.mark.django_db
def test_the_theme_of_somebody_who_is_signed_in_is_written_by_the_server(
    client: Client, django_user_model: type[User]
) -> None:
    user = django_user_model.objects.create_user(username="alice", password="x")
    client.force_login(user)

    client.post("/theme/", {"theme": "dark"})

    user.refresh_from_db()
    assert user.theme == "dark"
    assert 'data-theme="dark"' in client.get("/password/").content.decode()


def test_the_page_for_our_own_failure_needs_neither_user_nor_database(rf: RequestFactory) -> None:
    response = errors.server_error(rf.get("/"))

    assert response.status_code == 500
    assert b"Server error" in response.content


@pytest.mark.django_db
def test_a_page_that_is_not_there_says_so_without_echoing_markup(client: Client) -> None:
    response = client.get("/no/<b>such</b>/page")

    assert response.status_code == 404
    assert b"Page not found" in response.content
    assert b"<b>such</b>" not in response.content


@pytest.mark.django_db
def test_a_form_without_a_token_is_answered_in_words() -> None:
    response = Client(enforce_csrf_checks=True).post("/login/", {"username": "alice"})

    assert response.status_code == 403
    assert b"Form expired" in response.content


@pytest.mark.django_db
def test_a_page_that_does_not_exist_keeps_the_frame_for_people(client: Client) -> None:
    make_user("alice")

    stranger = client.get("/no-such-page/")
    client.force_login(User.objects.get(username="alice"))
    found = client.get("/no-such-page/")

    assert found.status_code == stranger.status_code == 404
    assert "<nav" in found.content.decode()
    assert "Page not found" in found.content.decode()
    assert "<nav" not in stranger.content.decode()
