"""Checks of pages by axe-core in light and dark mode, and of their width on phones and
enlarged."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from axe_playwright_python.base import AXE_SCRIPT
from django.urls import Resolver404, resolve
from playwright.sync_api import Page

from tests.support.browsing import SLOW_MS, RunningPortal, open_job, ready, sign_in

Scheme = Literal["light", "dark"]
RULES: dict[Scheme, dict[str, Any]] = {
    "light": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]},
    # The scheme changes only colours.
    "dark": {"type": "rule", "values": ["color-contrast"]},
}
SERIOUS = {"serious", "critical"}
VIOLATIONS = """
(options) => axe.run(options).then(({violations}) => violations.map((wrong) => ({
  id: wrong.id, impact: wrong.impact,
  places: wrong.nodes.slice(0, 3).map((node) => node.target.join(" ")),
})))"""
SHORTEN = "document.querySelectorAll('section.api').forEach((s, i) => i < 2 || s.remove())"
"""Removes most of the REST operations from the page: they are equal, and axe would take
minutes."""
SIDEWAYS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
WIDTHS = {360: "a phone", 720: "200 % zoom"}
WIDE: Any = {"width": 1440, "height": 900}
ROOMY = re.compile(r"^(timeline|submit|job-logs|job-spec|job-calls)$")
"""Pages with logs, code or a wide drawing, which scroll separately."""


@dataclass
class Read:
    """The checked pages, and the violations.

    Attributes:
        pages: address of each page, by the name of its route.
        findings: serious and critical violations found by axe.
        too_wide: pages that scroll sideways.
    """

    pages: dict[str, str] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    too_wide: list[str] = field(default_factory=list)


@contextmanager
def reading(browser: Any, portal: RunningPortal) -> Iterator[tuple[Page, int, Read]]:
    """A browser signed in as admin, and a waiting job.

    The page of a waiting job has more content than others.
    """
    found = Read()
    # Without animations, axe never measures a colour in transition.
    context = browser.new_context(viewport=WIDE, color_scheme="light", reduced_motion="reduce")
    page = context.new_page()
    page.set_default_timeout(SLOW_MS)
    read_page(page, portal.url, "/login/", found)
    sign_in(page, portal, "admin")
    yield page, open_job(page, portal.url, "detector, two sockets"), found
    context.close()


def read_page(page: Page, url: str, path: str, found: Read) -> None:
    """Open a page and record its violations."""
    page.goto(f"{url}{path}")
    if page.locator("#nav").count():
        ready(page)
    name = route_of(path) or path
    found.pages[name] = path
    _ask_axe(page, name, found)
    _measure(page, name, found)


def read_all_pages(
    page: Page, url: str, begin: list[str], found: Read, is_page: Callable[[str], bool]
) -> None:
    """Check all pages that links from the start page reach, each route once."""
    waiting = list(begin)
    seen = {route_of(path) for path in begin}
    while waiting:
        read_page(page, url, waiting.pop(), found)
        for link in _links(page, url):
            route = route_of(link)
            if route is not None and route not in seen and is_page(route):
                seen.add(route)
                waiting.append(link)


def route_of(path: str) -> str | None:
    """Return the route name of an address; None if there is no such route."""
    try:
        return resolve(urlsplit(path).path).view_name
    except Resolver404:
        return None


def _ask_axe(page: Page, name: str, found: Read) -> None:
    page.evaluate(SHORTEN)
    page.evaluate(AXE_SCRIPT)
    for scheme, rules in RULES.items():
        page.emulate_media(color_scheme=scheme)
        options = {"runOnly": rules, "resultTypes": ["violations"], "elementRef": False}
        for wrong in page.evaluate(VIOLATIONS, options):
            if wrong["impact"] in SERIOUS:
                found.findings.append(f"{name}, {scheme}: {wrong['id']} at {wrong['places']}")
    page.emulate_media(color_scheme="light")


def _measure(page: Page, name: str, found: Read) -> None:
    if ROOMY.match(name):
        return
    for width, what in WIDTHS.items():
        page.set_viewport_size({"width": width, "height": 800})
        wide = page.evaluate(SIDEWAYS)
        if wide > 0:
            found.too_wide.append(f"{name} for {what} by {wide} px")
    page.set_viewport_size(WIDE)


def _links(page: Page, url: str) -> list[str]:
    hrefs = page.eval_on_selector_all(
        "a[href]", "all => all.map((a) => new URL(a.getAttribute('href'), location.href).href)"
    )
    parts = [urlsplit(href) for href in hrefs if href.startswith(f"{url}/")]
    return [part.path + (f"?{part.query}" if part.query else "") for part in parts]
