"""The command palette in a real browser: keyboard, groups, the newest query, and its roles."""

import json
from pathlib import Path

import pytest
from django.template.loader import render_to_string
from playwright.sync_api import Page, Route, expect

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

SCRIPTS = Path(__file__).resolve().parents[2] / "static" / "js"
HOST = "http://portal.test"
START = """<script type="module">
import { startPalette } from "/js/palette.js";
startPalette();
document.documentElement.dataset.ready = "yes";
</script>"""
JOB = {"kind": "job", "id": "7", "name": "segment", "detail": "7 · alice", "url": "/jobs/7/"}
NODE = {"kind": "node", "id": "1", "name": "seg-node", "detail": "ready", "url": "/nodes/1/"}
DATA = {
    "url": "/api/v1/search/",
    "submit": "/submit/",
    "commands": [{"name": "Jobs", "url": "/jobs/"}, {"name": "Timeline", "url": "/timeline/"}],
}


@pytest.fixture
def palette(page: Page) -> Page:
    def answer(route: Route) -> None:
        path = route.request.url.removeprefix(HOST)
        if path.startswith("/js/"):
            route.fulfill(path=SCRIPTS / path.rpartition("/")[2])
        elif path.startswith("/api/v1/search/"):
            route.fulfill(
                body=json.dumps({"results": [JOB, NODE]}), content_type="application/json"
            )
        else:
            dialog = render_to_string("components/_palette.html", {"palette": DATA})
            html = (
                f'<!doctype html><html lang="en"><body><button id="own">x</button>{dialog}{START}'
            )
            route.fulfill(body=html, content_type="text/html")

    page.route(f"{HOST}/**", answer)
    page.goto(f"{HOST}/")
    page.wait_for_selector("html[data-ready]")
    page.focus("#own")
    page.keyboard.press("Control+k")
    return page


def test_it_opens_with_pages_and_returns_the_focus(palette: Page) -> None:
    expect(palette.locator("#palette")).to_be_visible()
    expect(palette.get_by_role("option")).to_have_count(2)
    expect(palette.get_by_role("combobox")).to_be_focused()

    palette.keyboard.press("Escape")

    expect(palette.locator("#palette")).to_be_hidden()
    expect(palette.locator("#own")).to_be_focused()


def test_the_arrows_select_and_enter_opens(palette: Page) -> None:
    palette.keyboard.type("seg")
    expect(palette.get_by_role("option")).to_have_count(2)
    expect(palette.get_by_role("status")).to_have_text("2 results")
    expect(palette.locator("mark").first).to_have_text("seg")

    palette.keyboard.press("ArrowDown")
    active = palette.get_by_role("combobox").get_attribute("aria-activedescendant")
    expect(palette.locator(f"#{active}")).to_have_attribute("aria-selected", "true")
    expect(palette.locator(f"#{active}")).to_contain_text("seg-node")
    palette.keyboard.press("Enter")

    palette.wait_for_url(f"{HOST}/nodes/1/")


def test_tab_shows_what_can_be_done_with_a_job(palette: Page) -> None:
    palette.keyboard.type("seg")
    expect(palette.get_by_role("option").first).to_contain_text("segment")

    palette.keyboard.press("Tab")
    expect(palette.get_by_role("option")).to_have_count(5)
    palette.keyboard.press("ArrowUp")
    palette.keyboard.press("Enter")

    palette.wait_for_url(f"{HOST}/jobs/7/#do-stop")


def test_a_prefix_limits_the_search_to_commands(palette: Page) -> None:
    palette.keyboard.type(">time")

    expect(palette.get_by_role("option")).to_have_text(["Timeline"])
