"""Questions before something is done, on pages whose parts come anew, in a real browser."""

from pathlib import Path

import pytest
from django.template.loader import render_to_string
from playwright.sync_api import Page, Route, expect

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

SCRIPTS = Path(__file__).resolve().parents[2] / "static" / "js"
HOST = "http://portal.test"
START = """<script type="module">
import { startConfirm } from "/js/confirm.js";
import { startParts } from "/js/parts.js";
startConfirm();
startParts();
document.documentElement.dataset.ready = "yes";
</script>"""
NODE = """<div id="acts"><button form="do-drain">Drain</button></div>
<form id="do-drain" method="post" action="/drain/" data-confirm="Drain node-1?"
data-confirm-verb="Drain it"></form>"""


def visit(page: Page, body: str) -> list[str]:
    """Show ``body`` with its scripts; what is posted then stands in the list."""
    sent: list[str] = []

    def answer(route: Route) -> None:
        path = route.request.url.removeprefix(HOST)
        if path.startswith("/js/"):
            route.fulfill(path=SCRIPTS / path.rpartition("/")[2])
        elif route.request.method == "POST":
            sent.append(f"{path} {route.request.post_data or ''}".strip())
            route.fulfill(body="<h1>Done</h1>", content_type="text/html")
        else:
            dialog = render_to_string("components/_confirm.html")
            html = f'<!doctype html><html lang="en"><body>{body}{dialog}{START}</body></html>'
            route.fulfill(body=html, content_type="text/html")

    page.route(f"{HOST}/**", answer)
    page.goto(f"{HOST}/")
    page.wait_for_selector("html[data-ready]")
    return sent


def test_what_was_agreed_to_is_sent_although_its_button_came_anew(page: Page) -> None:
    sent = visit(page, NODE)

    page.click("text=Drain")
    page.evaluate("acts.innerHTML = '<button form=do-cordon>Cordon</button>'")
    page.click("[data-confirm-yes]")

    expect(page.locator("h1")).to_have_text("Done")
    assert sent == ["/drain/"]


@pytest.mark.parametrize(("fresh", "swaps"), [("Drain", False), ("Cordon", True)])
def test_a_part_beside_that_is_as_it_was_is_not_swapped(
    page: Page, fresh: str, swaps: bool
) -> None:
    visit(page, NODE)

    asked = page.evaluate(
        """(word) => {
          const fragment = document.createDocumentFragment();
          fragment.append(acts.cloneNode(true));
          fragment.querySelector("button").textContent = word;
          const detail = { shouldSwap: true, target: acts, fragment };
          acts.dispatchEvent(new CustomEvent("htmx:oobBeforeSwap", { bubbles: true, detail }));
          return detail.shouldSwap;
        }""",
        fresh,
    )

    assert asked is swaps
