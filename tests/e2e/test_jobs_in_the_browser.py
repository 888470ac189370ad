"""A newcomer's way through the portal: sign in, submit, watch, clone, stop."""

import re

import pytest
from playwright.sync_api import Page, Route, expect

from tests.support.browsing import SLOW_MS, RunningPortal, ready

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]

STEPS = "for i in $(seq 20); do echo step $i; sleep 1; done; echo all done"


def submit(page: Page, portal: RunningPortal, *, name: str, command: str) -> int:
    """Fill in and send the form; return the job ID."""
    page.goto(f"{portal.url}/submit/")
    ready(page)
    page.fill("[name=name]", name)
    page.fill("[name='roles.worker.command']", command)
    expect(page.locator("[data-submit-yaml]")).to_have_value(re.compile(re.escape(command)))
    page.click("[data-submit-send]")
    page.wait_for_url(re.compile(r"/jobs/\d+/$"))
    return int(page.url.rstrip("/").rpartition("/")[2])


def state(page: Page, word: str) -> None:
    """Wait until the page, without being loaded again, says that the job is in this state."""
    expect(page.locator("#job-head .title-row .st")).to_have_text(word, timeout=SLOW_MS)


def test_a_job_is_submitted_by_form_its_log_streams_in_and_it_succeeds(
    alice: Page, running_portal: RunningPortal
) -> None:
    submit(alice, running_portal, name="first job", command=STEPS)
    ready(alice)
    alice.evaluate("window.sameDocument = true")

    expect(alice.locator(".log")).to_contain_text("step 1", timeout=SLOW_MS)
    assert "all done" not in alice.inner_text(".log")
    expect(alice.locator(".log")).to_contain_text("all done", timeout=SLOW_MS)
    state(alice, "Succeeded")

    steps = [line for line in alice.locator(".log .tx").all_inner_texts() if "step" in line]
    assert steps == [f"step {number}" for number in range(1, 21)]
    expect(alice.locator("[data-log-summary]")).to_contain_text("no gaps")
    assert alice.evaluate("window.sameDocument") is True


def test_what_is_typed_before_the_script_is_loaded_is_kept(
    alice: Page, running_portal: RunningPortal
) -> None:
    waiting: list[Route] = []

    def hold(route: Route) -> None:
        waiting.append(route)

    alice.route("**/js/submit.js", hold)
    alice.goto(f"{running_portal.url}/submit/")
    ready(alice)
    alice.fill("[name=name]", "typed early")
    alice.fill("[name='roles.worker.command']", "echo typed early")
    assert len(waiting) == 1

    waiting[0].continue_()

    expect(alice.locator("[data-submit-yaml]")).to_have_value(
        re.compile("echo typed early"), timeout=SLOW_MS
    )
    expect(alice.locator("[name=name]")).to_have_value("typed early")


def test_a_job_is_cloned_by_its_yaml_with_a_change(
    alice: Page, running_portal: RunningPortal
) -> None:
    first = submit(alice, running_portal, name="to be cloned", command="echo from the first")
    alice.goto(f"{running_portal.url}/submit/?clone={first}")
    ready(alice)
    text = alice.input_value("[data-submit-yaml]")

    alice.fill(
        "[data-submit-yaml]",
        "# second try\n" + text.replace("to be cloned", "cloned").replace("first", "second"),
    )
    expect(alice.locator("[name=name]")).to_have_value("cloned")
    expect(alice.locator("[data-submit-plan-body]")).to_contain_text("Fits now", timeout=SLOW_MS)
    alice.keyboard.press("Control+Enter")
    alice.wait_for_url(re.compile(r"/jobs/\d+/$"))
    ready(alice)

    expect(alice.locator("h1")).to_have_text("cloned")
    expect(alice.locator(".log")).to_contain_text("from the second", timeout=SLOW_MS)
    state(alice, "Succeeded")
    alice.click("[data-job-tabs] a:has-text('Spec')")
    expect(alice.locator("pre.source").first).to_contain_text("# second try")


def test_a_running_job_is_stopped_from_its_page_after_a_question(
    alice: Page, running_portal: RunningPortal
) -> None:
    submit(alice, running_portal, name="to be stopped", command="echo here; sleep 600")
    ready(alice)
    state(alice, "Running")

    alice.click("#do-stop")
    expect(alice.locator("#confirm")).to_be_visible()
    assert alice.evaluate("document.activeElement.textContent") == "Keep running"
    alice.click("[data-confirm-yes]")
    alice.wait_for_load_state()
    ready(alice)

    state(alice, "Stopped")
    expect(alice.locator("#do-stop")).to_have_count(0)


def test_a_job_is_stopped_although_its_page_was_renewed_while_the_question_stood(
    alice: Page, running_portal: RunningPortal
) -> None:
    submit(alice, running_portal, name="renewed meanwhile", command="sleep 600")
    ready(alice)
    state(alice, "Running")

    alice.click("#do-stop")
    alice.evaluate(
        "const head = document.querySelector('#job-head'); head.outerHTML = head.outerHTML;"
    )
    alice.click("[data-confirm-yes]")

    state(alice, "Stopped")


def test_rows_change_in_place_and_several_jobs_are_stopped_at_once(
    alice: Page, running_portal: RunningPortal
) -> None:
    numbers = [
        submit(alice, running_portal, name=f"sweep {n}", command="sleep 600") for n in (1, 2)
    ]
    alice.goto(f"{running_portal.url}/jobs/?q=sweep&mine=1")
    ready(alice)
    for number in numbers:
        row = alice.locator(f"tr[data-key='{number}']")
        expect(row.locator(".st")).to_have_text("Running", timeout=SLOW_MS)
        row.locator("input.check").check()

    alice.click("#bulk [data-row-action=stop]")
    expect(alice.locator("#confirm")).to_contain_text("Stop 2 jobs?")
    alice.click("[data-confirm-yes]")
    expect(alice.locator("h1")).to_have_text("Stop: 2 jobs of 2")
    expect(alice.locator("td .st.ok")).to_have_count(2)

    alice.click("text=Back to the list")
    for number in numbers:
        row = alice.locator(f"tr[data-key='{number}']")
        expect(row.locator(".st")).to_have_text("Stopped", timeout=SLOW_MS)


def test_an_error_is_at_its_field_with_a_value_that_would_do(
    alice: Page, running_portal: RunningPortal
) -> None:
    alice.goto(f"{running_portal.url}/submit/")
    ready(alice)

    alice.fill("[name='roles.worker.devices']", "99")

    wrong = alice.locator("[data-live-error]")
    expect(wrong).to_contain_text("no node has more than 8 of these devices")
    expect(alice.locator("[name='roles.worker.devices']")).to_have_attribute(
        "aria-invalid", "true"
    )
    expect(alice.locator("[data-yaml-summary]")).to_contain_text("1 error, line")
    expect(alice.locator("[data-submit-send]")).to_have_attribute("aria-disabled", "true")
    alice.click("[data-live-error] button")
    expect(alice.locator("[name='roles.worker.devices']")).to_have_value("8")
    expect(wrong).to_have_count(0)
    expect(alice.locator("[data-submit-send]")).to_have_attribute("aria-disabled", "false")


def test_a_text_that_is_half_typed_leaves_the_form_as_it_was(
    alice: Page, running_portal: RunningPortal
) -> None:
    alice.goto(f"{running_portal.url}/submit/")
    ready(alice)
    name, summary = alice.locator("[name=name]"), alice.locator("[data-yaml-summary]")
    whole = alice.input_value("[data-submit-yaml]")
    was = name.input_value()

    alice.fill("[data-submit-yaml]", whole.replace("virtual_cluster: vision-a", "virtual_clu"))

    expect(summary).to_have_text(re.compile(r"Is not valid YAML: could not find"))
    expect(alice.locator(".yaml .numbers .bad")).to_have_count(1)
    expect(alice.locator("[data-submit-kept]")).to_be_visible()
    expect(name).to_have_value(was)
    alice.fill("[data-submit-yaml]", whole.replace(f"name: {was}", "name: mended"))
    expect(name).to_have_value("mended")
    expect(alice.locator("[data-submit-kept]")).to_be_hidden()
    expect(summary).to_have_text("No errors")
