"""The hours of a team as its lead reads them; last, since they are summed up now and then."""

import time

import pytest
from playwright.sync_api import Page, expect

from tests.support.browsing import RunningPortal, ready

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(480)]

SUMMED_SECONDS = 360.0


def until_shown(page: Page, address: str, selector: str) -> None:
    """Load a page again and again until something is on it that is summed up now and then."""
    deadline = time.monotonic() + SUMMED_SECONDS
    page.goto(address)
    while not page.locator(selector).count():
        assert time.monotonic() < deadline, page.inner_text("main")
        page.wait_for_timeout(2_000)
        page.reload()
    ready(page)


def test_a_lead_gets_the_hours_by_person_as_a_table_and_as_a_file(
    busy_portal: RunningPortal, carol: Page
) -> None:
    until_shown(carol, f"{busy_portal.url}/usage/", "main tbody")

    carol.click("main .tabs a:has-text('People')")
    ready(carol)
    expect(carol.locator("main tbody")).to_contain_text("alice")
    with carol.expect_download() as download:
        carol.click("main a:has-text('CSV')")
    text = download.value.path().read_text()

    assert "alice" in text
    assert "bob" not in text
