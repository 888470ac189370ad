"""Keys on the timeline, in a real browser."""

from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

SCRIPTS = Path(__file__).resolve().parents[2] / "static" / "js"
HOST = "http://portal.test"
PAGE = """<!doctype html><html lang="en"><body><h1>%s</h1><section id="timeline">
<nav><a href="/in" data-move="+">in</a><a href="/out" data-move="-">out</a></nav>
<input id="filter">
<div data-gantt data-since="2026-01-01T00:00:00Z" data-until="2026-01-01T01:00:00Z">
<svg data-brush></svg><div class="gantt-row"><a class="run" href="/jobs/1/">1</a>
<a class="run" href="/jobs/2/">2</a></div></div></section><script type="module">
import { startKeys } from "/js/keys.js";
import { startTimeline } from "/js/timeline.js";
startKeys();
startTimeline(document.querySelector("[data-gantt]"));
document.documentElement.dataset.ready = "yes";
</script></body></html>"""


@pytest.fixture
def timeline(page: Page) -> Page:
    """A drawing with two bars, whose moves lead to itself."""

    def answer(route: Route) -> None:
        path = route.request.url.removeprefix(HOST)
        if path.startswith("/js/"):
            route.fulfill(path=SCRIPTS / path.rpartition("/")[2])
        else:
            route.fulfill(body=PAGE % path, content_type="text/html")

    page.route(f"{HOST}/**", answer)
    page.goto(f"{HOST}/")
    page.wait_for_selector("html[data-ready]")
    return page


def test_plus_and_minus_zoom_wherever_the_focus_is_but_in_a_field(timeline: Page) -> None:
    timeline.keyboard.press("+")
    timeline.wait_for_url(f"{HOST}/in")
    timeline.wait_for_selector("html[data-ready]")
    expect(timeline.locator("a.run:focus")).to_have_count(0)
    timeline.keyboard.press("-")
    timeline.wait_for_url(f"{HOST}/out")
    timeline.wait_for_selector("html[data-ready]")
    timeline.locator("#filter").focus()
    timeline.keyboard.press("+")

    expect(timeline.locator("#filter")).to_have_value("+")
    expect(timeline.locator("h1")).to_have_text("/out")


def test_a_bar_has_the_focus_still_after_a_zoom_by_key(timeline: Page) -> None:
    timeline.locator("a.run").first.focus()
    timeline.keyboard.press("ArrowRight")

    timeline.keyboard.press("+")
    timeline.wait_for_url(f"{HOST}/in")
    timeline.wait_for_selector("html[data-ready]")

    expect(timeline.locator("a.run").nth(1)).to_be_focused()
    timeline.keyboard.press("ArrowLeft")
    expect(timeline.locator("a.run").first).to_be_focused()
