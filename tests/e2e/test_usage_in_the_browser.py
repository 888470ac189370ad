"""The hours of a team as its lead reads them."""

import pytest
from playwright.sync_api import Page, expect

from tests.support.browsing import RunningPortal, ready

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(480)]


def test_a_lead_gets_the_hours_by_person_as_a_table_and_as_a_file(
    summed_portal: RunningPortal, carol: Page
) -> None:
    carol.goto(f"{summed_portal.url}/usage/")
    ready(carol)

    carol.click("main .tabs a:has-text('Users')")
    ready(carol)
    expect(carol.locator("main tbody")).to_contain_text("alice")
    with carol.expect_download() as download:
        carol.click("main a:has-text('CSV')")
    text = download.value.path().read_text()

    assert "alice" in text
    assert "bob" not in text
