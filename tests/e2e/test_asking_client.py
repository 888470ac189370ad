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
import { startRows } from "/js/rows.js";
startConfirm();
startParts();
startRows();
document.documentElement.dataset.ready = "yes";
</script>"""
NODE = """<div id="acts"><button form="do-drain">Drain</button></div>
<form id="do-drain" method="post" action="/drain/" data-confirm="Drain node-1?"
data-confirm-verb="Drain it"></form>"""

BULK = """<form id="bulk" method="post" action="/act/" data-bulk hidden><b data-bulk-count></b>
<button name="act" value="clone" data-confirm-plural="Clone # job|Clone # jobs">Clone</button>
<button name="act" value="stop" data-row-action="stop" data-needs="stop"
data-ended="# has ended.|# have ended." data-refused="# is not yours.|# are not yours."
data-confirm-plural="Stop # job|Stop # jobs" data-confirm-body="They end.">Stop</button></form>
<table><tbody data-rows>%s</tbody></table>"""
ROW = """<tr data-key="%d" data-name="job" data-stop="%s"><td>
<input class="check" type="checkbox" name="selected" value="%d" form="bulk"></td></tr>"""
JOBS = BULK % "".join(
    ROW % (number, stop, number)
    for number, stop in enumerate(("yes", "ended", "ended", "yes", "refused"), 1)
)


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


def pick(page: Page, *keys: int) -> None:
    for key in keys:
        page.check(f"[data-key='{key}'] input")


def test_of_the_picked_jobs_only_those_that_can_be_stopped_are_counted_and_sent(
    page: Page,
) -> None:
    sent = visit(page, JOBS)

    pick(page, 1, 2, 3, 4, 5)
    page.click("text=Stop")

    expect(page.locator("#confirm-title")).to_have_text("Stop 2 jobs?")
    expect(page.locator("#confirm-body")).to_have_text("They end. 2 have ended. 1 is not yours.")
    expect(page.locator("#confirm li")).to_have_count(2)
    page.click("[data-confirm-yes]")
    expect(page.locator("h1")).to_have_text("Done")
    assert sent == ["/act/ act=stop&selected=1&selected=4"]


def test_what_can_be_done_to_all_is_done_to_all_that_were_picked(page: Page) -> None:
    sent = visit(page, JOBS)

    pick(page, 1, 2)
    page.click("text=Clone")
    page.click("[data-confirm-yes]")

    expect(page.locator("h1")).to_have_text("Done")
    assert sent == ["/act/ act=clone&selected=1&selected=2"]


def test_where_all_have_ended_there_is_nothing_to_stop(page: Page) -> None:
    visit(page, JOBS)

    pick(page, 2, 3)
    expect(page.locator("[data-row-action=stop]")).to_be_disabled()
    pick(page, 4)

    expect(page.locator("[data-row-action=stop]")).to_be_enabled()
