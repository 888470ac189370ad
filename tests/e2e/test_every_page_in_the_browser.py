"""Every page that links lead to, as axe-core reads it; too long for every day."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.urls import get_resolver

from tests.support.browsing import RunningPortal
from tests.support.reading_pages import Read, read_all_pages, read_page, reading

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

NO_PAGES = {
    # Answered with a part, a file or a redirect, or not for people who are signed in.
    "audit-csv", "fleet-figure", "job-device-figure", "job-goodput", "job-log-download",
    "job-log-search",
    "job-unblock", "job-waiting", "language", "logout",
    "overview-day", "password-changed", "policies-shadow-fields", "policies-shadows",
    "policies-what-if-fields", "submit-check", "theme",
    "usage-csv", "usage-figure", "virtual-cluster-check", "virtual-cluster-check-new",
    "virtual-cluster-past",
    "virtual-cluster-promises-csv",
    "virtual-cluster-policy-args", "virtual-cluster-recommended", "virtual-cluster-room",
    "components",
}  # fmt: skip
ACTS = re.compile(
    r"-(act|amend|archive|caps|change|clone|delete|dismiss|drop|keep|policy|release|remove|replay"
    r"|revoke|rotate|shape|stop|switch|test|views)$"
)


@pytest.fixture(scope="module")
def read(busy_portal: RunningPortal, browser: Any) -> Iterator[Read]:
    """All pages, each read once in both schemes and at the widths of a phone."""
    url = busy_portal.url
    with reading(browser, busy_portal) as (page, waits, found):
        # The page of a job links to estimates only while it has one itself.
        begin = ["/", f"/jobs/{waits}/", "/estimates/"]
        read_all_pages(page, url, begin, found, lambda name: name in PAGES)
        for path in ("/api/docs/", "/no-such-page/"):
            read_page(page, url, path, found)
        yield found


def _page_routes() -> set[str]:
    """Names of all addresses that are pages of the portal itself."""
    known = {name for name in get_resolver().reverse_dict if isinstance(name, str)}
    others = {"healthz", "readyz", "metrics"} | {name for name in known if name.startswith("api-")}
    return {name for name in known - others - NO_PAGES if not ACTS.search(name)}


PAGES = _page_routes()


def test_axe_finds_nothing_serious_on_any_page_in_light_and_dark(read: Read) -> None:
    assert read.findings == []


def test_every_page_of_the_url_configuration_was_read(read: Read) -> None:
    assert PAGES - set(read.pages) == set()


def test_no_page_scrolls_sideways_on_a_phone_or_at_200_percent_zoom(read: Read) -> None:
    assert read.too_wide == []
