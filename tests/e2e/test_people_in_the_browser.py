"""What each kind of person comes for, done in a browser on a busy cluster."""

import re
import shlex
import subprocess

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.support.browsing import SLOW_MS, RunningPortal, open_job, ready, sign_in

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def stat(page: Page, label: str) -> Locator:
    """The stat tile of this label."""
    return page.locator(".stat").filter(has=page.locator("dt", has_text=re.compile(f"^{label}$")))


def test_a_researcher_reads_why_a_job_waits_and_applies_what_lets_it_start(
    busy_portal: RunningPortal, alice: Page
) -> None:
    open_job(alice, busy_portal.url, "vit-large pretraining")

    head = alice.locator("#job-head")
    expect(head).to_contain_text("vc-guarantee-in-use")
    expect(head).to_contain_text("blocked by:")
    expect(head).to_contain_text(re.compile("Starts |estimate"), timeout=SLOW_MS)
    expect(head.locator(".alternatives")).to_contain_text("it starts now", timeout=SLOW_MS)
    starting = head.locator(".alternatives li", has_text="it starts now").first
    starting.locator("button").click()
    alice.locator("#confirm [data-confirm-yes]").click()
    alice.wait_for_load_state()
    ready(alice)

    expect(alice.locator("#job-head .title-row .st")).to_have_text("Running", timeout=SLOW_MS)


def test_a_researcher_sees_steps_and_goodput_change_without_loading_the_page_again(
    busy_portal: RunningPortal, alice: Page
) -> None:
    open_job(alice, busy_portal.url, "vit-small ablation")
    alice.evaluate("window.sameDocument = true")
    step = stat(alice, "Step").locator(".v")

    expect(alice.locator("#job-head")).to_contain_text("samples/s", timeout=SLOW_MS)
    before = step.inner_text()
    expect(step).not_to_have_text(before, timeout=SLOW_MS)

    assert alice.evaluate("window.sameDocument") is True


def test_a_lead_sees_the_share_adds_a_member_and_caps_another(
    busy_portal: RunningPortal, carol: Page
) -> None:
    carol.goto(f"{busy_portal.url}/tenants/")
    carol.click("main a:text-is('vision')")
    ready(carol)
    expect(stat(carol, "Devices held")).to_contain_text("of 14 guaranteed")

    carol.click("a[aria-label='Edit dave']")
    carol.fill("[name=max_devices]", "3")
    carol.click("main button:text-is('Save')")
    ready(carol)
    expect(carol.locator("tr", has_text="dave").locator("td").nth(3)).to_contain_text("3")
    carol.click("a:has-text('Add member')")
    carol.fill("[name=username]", "erin")
    carol.click("main button:text-is('Add')")
    ready(carol)

    expect(carol.locator("tr", has_text="erin")).to_contain_text("member")


def test_an_admin_cordons_a_node_with_a_reason_that_the_audit_keeps(
    busy_portal: RunningPortal, admin: Page
) -> None:
    admin.goto(f"{busy_portal.url}/nodes/")
    admin.click("main a:text-is('demo-3')")
    ready(admin)

    admin.click(".head .acts button:text-is('Cordon')")
    admin.fill("#confirm [data-confirm-reason] input", "A new power supply.")
    admin.click("[data-confirm-yes]")
    expect(admin.locator(".head .st")).to_have_text("Cordoned", timeout=SLOW_MS)
    admin.click(".head .acts button:text-is('Uncordon')")
    admin.click("[data-confirm-yes]")
    expect(admin.locator(".head .st")).to_have_text("Ready", timeout=SLOW_MS)

    admin.goto(f"{busy_portal.url}/audit/")
    expect(admin.locator("ol.audit")).to_contain_text("A new power supply.")


def test_an_admin_sees_at_once_whether_a_shape_fits_and_changes_a_policy(
    busy_portal: RunningPortal, admin: Page
) -> None:
    admin.goto(f"{busy_portal.url}/virtual-clusters/")
    admin.click("main a:has-text('vision-b')")
    ready(admin)

    field = admin.locator("#shape-form [aria-label='cpu-a nodes']")
    field.fill("1")
    expect(admin.locator("#verdict")).to_contain_text("does not fit", timeout=SLOW_MS)
    field.fill("0")
    expect(admin.locator("#verdict")).to_contain_text("This shape fits.", timeout=SLOW_MS)

    with admin.expect_response(re.compile(r"/virtual-clusters/policy/")):
        admin.select_option("[name=policy]", "tiresias")
    admin.click("button:text-is('Save policy')")
    ready(admin)
    expect(admin.locator("[name=policy]")).to_have_value("tiresias")


def test_an_admin_asks_what_if_and_gets_an_answer(busy_portal: RunningPortal, admin: Page) -> None:
    admin.goto(f"{busy_portal.url}/policies/what-if/")
    ready(admin)

    admin.select_option("[name=virtual_cluster]", "vision-b")
    with admin.expect_response(re.compile(r"/what-if/fields/")):
        admin.select_option("[name=policy]", "srtf")
    admin.click("button:has-text('Run what-if')")
    admin.wait_for_url(re.compile(r"/policies/what-if/\d+/$"))

    expect(admin.locator(".title-row")).to_contain_text("Done", timeout=8 * SLOW_MS)
    expect(admin.locator("main")).to_contain_text("Mean time to completion")


def test_a_script_works_with_a_key_and_the_calls_that_the_pages_show(
    busy_portal: RunningPortal, alice: Page
) -> None:
    alice.goto(f"{busy_portal.url}/tokens/")
    ready(alice)
    alice.fill("[name=name]", "nightly")
    alice.check("[name=scopes][value='jobs:read']")
    alice.click("button:has-text('Create token')")
    ready(alice)
    key = re.search(r"tsr_\w+_[0-9a-f]+", alice.inner_text(".issued"))
    assert key is not None

    number = open_job(alice, busy_portal.url, "vit-small ablation")
    alice.click("[data-job-tabs] a:has-text('REST and CLI')")
    ready(alice)
    shown = alice.locator(".calls > div", has_text="Job details").inner_text()
    call = next(line for line in shown.splitlines() if line.startswith("curl "))
    words = shlex.split(call.replace("$TESSERA_TOKEN", key[0]))
    said = subprocess.run(
        [*words, "--silent", "--noproxy", "*"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout

    assert f'"id":{number},' in said
    assert '"name":"vit-small ablation"' in said


def test_somebody_of_another_tenant_finds_neither_the_job_nor_its_name(
    busy_portal: RunningPortal, page: Page
) -> None:
    sign_in(page, busy_portal, "bob")

    page.goto(f"{busy_portal.url}/jobs/?q=segmentation")

    expect(page.locator("main")).not_to_contain_text("segmentation demo")
