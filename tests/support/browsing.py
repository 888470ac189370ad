"""Helpers of browser tests: the portal, the sign-in, waits for pages."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

SLOW_MS = 60_000


@dataclass(frozen=True)
class RunningPortal:
    """Addresses and logins of a running portal.

    Attributes:
        data: data directory.
        logins: passwords by user name.
        cookies: session cookies by user, so that each user signs in only once.
    """

    url: str
    data: Path
    logins: dict[str, str]
    cookies: dict[str, list[Any]] = field(default_factory=dict)


def ready(page: Page) -> None:
    """Wait until the scripts of the page have started."""
    page.wait_for_selector('html[data-ready="yes"]')


def sign_in(page: Page, portal: RunningPortal, user: str) -> Page:
    """Return the browser of a signed-in user; its current page is not defined."""
    page.set_default_timeout(SLOW_MS)
    if user in portal.cookies:
        page.context.add_cookies(portal.cookies[user])
        return page
    page.goto(f"{portal.url}/login/")
    page.fill("[name=username]", user)
    page.fill("[name=password]", portal.logins[user])
    page.click("main button[type=submit], form button[type=submit]")
    ready(page)
    portal.cookies[user] = page.context.cookies()
    return page


def open_overview(page: Page, portal: RunningPortal) -> None:
    """Go to the page of the cluster."""
    page.goto(f"{portal.url}/cluster/")
    ready(page)


def open_job(page: Page, url: str, name: str) -> int:
    """Open the job of this name by its link in the list; return its ID."""
    page.goto(f"{url}/jobs/?q={name}")
    ready(page)
    page.locator("main tbody a").filter(has_text=re.compile(f"^{re.escape(name)}$")).click()
    page.wait_for_url(re.compile(r"/jobs/\d+/$"))
    ready(page)
    expect(page.locator("h1")).to_have_text(name)
    return int(page.url.rstrip("/").rpartition("/")[2])
