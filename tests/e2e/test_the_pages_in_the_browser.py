"""Keys, focus, motion, paper, and what axe-core says of eleven pages."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.support.browsing import SLOW_MS, RunningPortal, open_job, open_overview, ready
from tests.support.reading_pages import Read, read_page, reading

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

PATHS = (
    "/mine/", "/cluster/", "/jobs/", "/nodes/", "/virtual-clusters/", "/usage/", "/policies/",
    "/submit/",
)  # fmt: skip
"""Of each kind of page one; test_every_page_in_the_browser.py reads the others."""


@pytest.fixture(scope="module")
def read(busy_portal: RunningPortal, browser: Any) -> Iterator[Read]:
    """Eleven pages that have most of the components between them."""
    with reading(browser, busy_portal) as (page, waits, found):
        for path in (*PATHS, f"/jobs/{waits}/", f"/jobs/{waits}/logs/"):
            read_page(page, busy_portal.url, path, found)
        yield found


def test_axe_finds_nothing_serious_on_eleven_pages_in_light_and_dark(read: Read) -> None:
    assert len(read.pages) == 11
    assert read.findings == []


def test_none_of_them_scrolls_sideways_on_a_phone_or_at_200_percent_zoom(read: Read) -> None:
    assert read.too_wide == []


def test_keys_lead_to_search_pages_and_rows_and_tell_about_themselves(
    busy_portal: RunningPortal, admin: Page
) -> None:
    open_overview(admin, busy_portal)
    admin.keyboard.press("/")
    expect(admin.locator("[data-search]")).to_be_focused()
    admin.keyboard.press("Escape")
    admin.keyboard.press("?")
    expect(admin.locator("#keys")).to_be_visible()
    admin.keyboard.press("Escape")
    expect(admin.locator("#keys")).to_be_hidden()

    admin.keyboard.press("g")
    admin.keyboard.press("j")
    admin.wait_for_url(re.compile("/jobs/"))
    ready(admin)
    admin.keyboard.press("j")
    admin.keyboard.press("j")
    admin.keyboard.press("k")
    first = admin.locator("tbody[data-rows] tr[data-key]").first
    expect(first).to_have_attribute("aria-current", "true")
    key = first.get_attribute("data-key")
    admin.keyboard.press("Enter")

    admin.wait_for_url(re.compile(rf"/jobs/{key}/$"))


def test_focus_stays_where_it_is_while_values_change(
    busy_portal: RunningPortal, alice: Page
) -> None:
    open_job(alice, busy_portal.url, "vit-small ablation")
    tile = alice.locator(".stat", has=alice.locator("dt", has_text=re.compile("^Step$")))
    before = tile.locator(".v").inner_text()
    alice.focus("#do-stop")

    expect(tile.locator(".v")).not_to_have_text(before, timeout=SLOW_MS)

    assert alice.evaluate("document.activeElement.id") == "do-stop"


def test_nothing_moves_for_those_who_asked_for_less_motion(
    busy_portal: RunningPortal, admin: Page
) -> None:
    admin.emulate_media(reduced_motion="reduce")
    open_overview(admin, busy_portal)

    longest = admin.evaluate(
        "Math.max(...[...document.querySelectorAll('*')].map((e) => getComputedStyle(e))"
        ".flatMap((s) => [s.transitionDuration, s.animationDuration])"
        ".flatMap((s) => s.split(',')).map(parseFloat))"
    )

    assert longest <= 0.001


def test_paper_has_no_frame_and_reports_where_it_comes_from(
    busy_portal: RunningPortal, admin: Page
) -> None:
    admin.emulate_media(media="print", color_scheme="dark")
    open_overview(admin, busy_portal)

    expect(admin.locator("nav.nav")).to_be_hidden()
    expect(admin.locator("header.top")).to_be_hidden()
    expect(admin.locator(".page-foot")).to_contain_text(busy_portal.url)
    lightness = admin.evaluate("getComputedStyle(document.querySelector('h1')).color")
    assert max(int(part) for part in re.findall(r"\d+", lightness)[:3]) < 100
