"""Forms that are clicked twice, in a real browser."""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

SCRIPTS = Path(__file__).resolve().parents[2] / "static" / "js"
HOST = "http://portal.test"
PAGE = """<!doctype html><html lang="en"><body>
<form method="post" action="/made/"><button>Make the key</button></form>
<form method="get" action="/found/"><button>Search</button></form>
<script type="module">
import { startSending } from "/js/sending.js";
addEventListener("submit", (event) => { if (globalThis.asks) event.preventDefault(); });
startSending();
document.documentElement.dataset.ready = "yes";
</script></body></html>"""


@pytest.fixture
def sent(page: Page) -> list[str]:
    """What has reached the server, which answers no form."""
    found: list[str] = []

    def answer(route: Route) -> None:
        path = route.request.url.removeprefix(HOST)
        if path.startswith("/js/"):
            route.fulfill(path=SCRIPTS / path.rpartition("/")[2])
        elif path == "/":
            route.fulfill(body=PAGE, content_type="text/html")
        else:
            found.append(f"{route.request.method} {path}")
            route.fulfill(status=204)

    page.route(f"{HOST}/**", answer)
    page.clock.install()
    page.goto(f"{HOST}/")
    page.wait_for_selector("html[data-ready]")
    return found


def click(page: Page, name: str) -> None:
    page.get_by_role("button", name=name).click(no_wait_after=True)


def wait_for(page: Page, condition: Callable[[], bool]) -> None:
    for _ in range(1500):
        if condition():
            return
        page.evaluate("new Promise((done) => queueMicrotask(done))")
    raise AssertionError("it never came")


def test_a_form_that_is_on_its_way_is_not_sent_again(page: Page, sent: list[str]) -> None:
    click(page, "Make the key")
    wait_for(page, lambda: bool(sent))
    click(page, "Make the key")
    click(page, "Search")
    wait_for(page, lambda: "GET /found/?" in sent)

    assert sent == ["POST /made/", "GET /found/?"]


def test_a_form_whose_load_was_stopped_can_be_sent_again(page: Page, sent: list[str]) -> None:
    click(page, "Make the key")
    wait_for(page, lambda: bool(sent))

    page.clock.fast_forward(11_000)
    click(page, "Make the key")
    wait_for(page, lambda: len(sent) > 1)

    assert sent == ["POST /made/"] * 2


def test_what_a_dialog_has_stopped_was_not_sent(page: Page, sent: list[str]) -> None:
    page.evaluate("globalThis.asks = true")
    click(page, "Make the key")
    page.evaluate("globalThis.asks = false")

    click(page, "Make the key")
    wait_for(page, lambda: bool(sent))

    assert sent == ["POST /made/"]
