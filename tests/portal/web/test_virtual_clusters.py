"""Virtual clusters: the list, one with its shape, the live verdict, and changing them."""

import json
import re
from html import unescape
from typing import Any

import pytest
from django.test import Client
from django.utils.html import escape

from portal.web.policy_fields import policy_summaries, policy_summary
from portal.web.vc_forms import cell_name, counts_sent
from scheduling.clusters.models import VcQuota, VirtualCluster
from scheduling.core.policies import POLICIES
from tenants.models import AuditEntry
from tests.factories.cluster import NOW
from tests.factories.tenants import make_user
from tests.support.cluster_pages import HTMX, Stage, make_stage, read, sign_in, words_of

pytestmark = pytest.mark.django_db

NODE = 'cells:["a-node","a-node"]'
SOCKET = 'cells:["a-node","a-socket"]'


@pytest.fixture
def stage() -> Stage:
    return make_stage()


@pytest.fixture
def root(client: Client, stage: Stage) -> Client:
    return sign_in(client, "root")


def address(stage: Stage, end: str = "") -> str:
    return f"/virtual-clusters/{stage.vision_a.pk}/{end}"


@pytest.mark.parametrize("end", ["shape/", "policy/", "caps/", "archive/"])
def test_the_address_of_a_form_leads_to_its_page(root: Client, stage: Stage, end: str) -> None:
    response = root.get(address(stage, end))

    assert (response.status_code, response.headers["Location"]) == (302, address(stage))
    assert root.put(address(stage, end)).status_code == 405


def quotas(vc: VirtualCluster) -> dict[str, int]:
    return dict(VcQuota.objects.filter(virtual_cluster=vc).values_list("level", "count"))


def version(stage: Stage) -> int:
    stage.vision_a.refresh_from_db()
    return int(stage.vision_a.version)


def test_the_list_shows_shape_use_and_jobs(root: Client, stage: Stage) -> None:
    said = words_of(read(root, "/virtual-clusters/"))

    assert "vision-a tenant vision 1 a node 8 devices fifo 1 running 1 queued" in said
    assert "Not assigned 8" in said


def test_a_member_sees_shape_and_fits_and_no_form(client: Client, stage: Stage) -> None:
    html = read(sign_in(client, "alice"), address(stage))

    said = words_of(html)
    assert "a node 8 devices 3 1" in said
    assert "Which job sizes fit" in said
    assert "Only a cluster admin can change the shape." in said
    assert NODE not in html
    assert "Save limits" not in html
    assert "Recent changes" not in said


def test_a_lead_may_set_the_caps_and_nothing_else(client: Client, stage: Stage) -> None:
    sign_in(client, "lena")

    client.post(
        address(stage, "caps/"),
        {"version": version(stage), "max_devices_per_user": "4", "note": "mine"},
    )
    refused = [
        client.post(address(stage, end), {"policy": "fifo", NODE: "2"}).status_code
        for end in ("shape/", "policy/", "check/")
    ]

    stage.vision_a.refresh_from_db()
    assert (stage.vision_a.max_devices_per_user, stage.vision_a.note) == (4, "")
    assert refused == [403, 403, 403]


def test_the_verdict_reports_what_fits_and_what_is_left(root: Client, stage: Stage) -> None:
    html = root.post(address(stage, "check/"), {NODE: "1"}, headers=HTMX).content.decode()

    said = words_of(html)
    assert "This shape fits. 1 a node: 8 devices." in said
    assert "1 a node unassigned" in said
    assert f'id="left-{escape(NODE)}" hx-swap-oob="true"' in html
    assert "language-a" in html
    assert quotas(stage.vision_a) == {"a-node": 1}


def test_a_shape_that_does_not_fit_cannot_be_saved(root: Client, stage: Stage) -> None:
    def button(html: str) -> str:
        found = re.search(
            r'<button class="btn primary" type="submit" id="save-shape".*?>', html, re.DOTALL
        )
        assert found is not None
        return found[0]

    page = read(root, address(stage))
    fits = root.post(address(stage, "check/"), {NODE: "1"}, headers=HTMX).content.decode()
    too_many = root.post(address(stage, "check/"), {NODE: "99"}, headers=HTMX).content.decode()
    new = root.post("/virtual-clusters/check/", {NODE: "99"}, headers=HTMX).content.decode()

    assert "\ndisabled" not in button(page)
    assert "\ndisabled" not in button(fits)
    assert "\ndisabled" in button(too_many)
    assert 'hx-swap-oob="true"' in button(too_many)
    assert "save-shape" not in new


def test_a_page_left_open_is_told_only_of_the_levels_it_shows(root: Client, stage: Stage) -> None:
    page = read(root, address(stage))
    names = re.findall(r'name="(cells:[^"]*)"', page)
    sent = {unescape(name): "0" for name in names}

    whole = root.post(address(stage, "check/"), sent, headers=HTMX).content.decode()
    sent.pop(SOCKET)
    open_before = root.post(address(stage, "check/"), sent, headers=HTMX).content.decode()

    swapped = re.compile(r'id="left-([^"]*)" hx-swap-oob')
    assert swapped.findall(whole) == names == re.findall(r'id="left-([^"]*)"', page)
    assert swapped.findall(open_before) == [name for name in names if unescape(name) != SOCKET]
    assert "Reload the page" not in words_of(whole)
    assert "Reload the page to assign them." in words_of(open_before)


def test_the_verdict_names_the_level_and_the_most_that_fits(root: Client, stage: Stage) -> None:
    sent = {NODE: "2", SOCKET: "1"}

    said = words_of(root.post(address(stage, "check/"), sent, headers=HTMX).content.decode())

    assert "This shape does not fit." in said
    assert "2 × a node is too much: at most 1 fits" in said
    assert "1 × a socket is too much: none fits" in said
    assert "needs 1, has 0" in said


@pytest.mark.parametrize("count", ["-1", "1.5", "many", "9" * 30, "１"])
def test_a_number_that_is_none_is_refused(root: Client, stage: Stage, count: str) -> None:
    said = words_of(root.post(address(stage, "check/"), {NODE: count}).content.decode())
    root.post(address(stage, "shape/"), {NODE: count})

    assert "The shape is not valid." in said
    assert quotas(stage.vision_a) == {"a-node": 1}


def test_a_stepper_of_another_page_is_refused(root: Client, stage: Stage) -> None:
    said = words_of(root.post(address(stage, "check/"), {"cells:<b>": "1"}).content.decode())

    assert "The shape is not valid." in said


def test_a_shape_is_saved_and_recorded_with_before_and_after(root: Client, stage: Stage) -> None:
    answer = root.post(
        address(stage, "shape/"), {"version": version(stage), NODE: "1", SOCKET: "1"}, follow=True
    )

    entry = AuditEntry.objects.unscoped().get(action="virtual_cluster.update")
    assert quotas(stage.vision_a) == {"a-node": 1, "a-socket": 1}
    assert "changed: 1 a node, 1 a socket." in answer.content.decode()
    assert [cell["level"] for cell in entry.before["cells"]] == ["a-node"]
    assert [cell["level"] for cell in entry.after["cells"]] == ["a-node", "a-socket"]
    said = words_of(read(root, address(stage)))
    assert "Recent changes Audit root" in said
    assert "to 1 × a node; 1 × a socket" in said


def test_a_shape_that_does_not_fit_is_not_saved(root: Client, stage: Stage) -> None:
    sent = {"version": version(stage), NODE: "3"}

    answer = root.post(address(stage, "shape/"), sent)

    html = answer.content.decode()
    said = words_of(html)
    assert answer.status_code == 422
    assert "No changes were made." in said
    assert "at most 2 fit" in said
    assert quotas(stage.vision_a) == {"a-node": 1}
    assert 'value="3"' in html


def test_without_script_a_button_checks_the_shape(root: Client, stage: Stage) -> None:
    html = root.post(
        address(stage, "shape/"), {"version": version(stage), NODE: "2", "check": "yes"}
    ).content.decode()

    assert "This shape fits." in words_of(html)
    assert 'value="2"' in html
    assert quotas(stage.vision_a) == {"a-node": 1}


def test_of_two_admins_the_second_gets_an_error_and_sees_both(root: Client, stage: Stage) -> None:
    seen = version(stage)
    root.post(address(stage, "shape/"), {"version": seen, NODE: "2"})

    answer = root.post(address(stage, "shape/"), {"version": seen, NODE: "0", SOCKET: "1"})

    said = words_of(answer.content.decode())
    assert answer.status_code == 409
    assert "Another person changed vision-a meanwhile." in said
    assert "your change was: 1 a socket." in said
    assert quotas(stage.vision_a) == {"a-node": 2}
    assert 'value="2"' in answer.content.decode()


@pytest.mark.parametrize("version", ["9" * 5000, "9" * 30, "-1", "first"])
def test_what_is_no_version_overwrites_nothing(root: Client, stage: Stage, version: str) -> None:
    answer = root.post(address(stage, "shape/"), {"version": version, NODE: "2"})

    assert answer.status_code == 409
    assert quotas(stage.vision_a) == {"a-node": 1}


def test_caps_that_came_too_late_are_reported_in_words(root: Client, stage: Stage) -> None:
    seen = version(stage)
    root.post(address(stage, "caps/"), {"version": seen, "note": "first"})

    answer = root.post(address(stage, "caps/"), {"version": seen, "note": "second"})

    said = words_of(answer.content.decode())
    assert answer.status_code == 409
    assert "Devices per user: none, Borrowed devices: none, Note: second." in said
    stage.vision_a.refresh_from_db()
    assert stage.vision_a.note == "first"


def test_its_jobs_leads_to_the_list_of_its_jobs(root: Client, stage: Stage) -> None:
    assert 'href="/jobs/?virtual_cluster=vision-a"' in read(root, address(stage))


def test_the_policy_and_its_parameters_are_saved(root: Client, stage: Stage) -> None:
    root.post(address(stage, "policy/"), {"version": version(stage), "policy": "fifo"})

    stage.vision_a.refresh_from_db()
    assert stage.vision_a.policy_args == {"backfill": False}
    html = read(root, address(stage))
    assert 'name="arg-backfill"' in html
    assert "checked" not in html.split('name="arg-backfill"')[1].split(">")[0]


def test_an_unknown_policy_is_refused(root: Client, stage: Stage) -> None:
    html = root.post(address(stage, "policy/"), {"policy": "<b>"}).content.decode()

    stage.vision_a.refresh_from_db()
    assert stage.vision_a.policy == "fifo"
    assert "Select a valid choice" in html


def test_an_error_repeats_little_of_what_was_sent(root: Client, stage: Stage) -> None:
    long = "x" * 1_000_000
    prices = {"policy": "gavel", "arg-prices": long}

    chosen = root.post(address(stage, "policy/"), {"policy": long}).content.decode()
    given = root.post(address(stage, "policy/"), prices).content.decode()

    assert "x" * 100 in chosen
    assert "x" * 1001 not in chosen
    assert given.count("x" * 1001) == 999  # the field keeps what was typed, and nothing else


def test_parameters_of_a_policy_have_their_types_and_bounds(root: Client, stage: Stage) -> None:
    html = read(root, "/virtual-clusters/policy/?policy=backfill", **HTMX)

    assert '<option value="all">all</option>' in html
    assert 'min="1" max="10000"' in html.replace(' aria-describedby="id_arg-depth-hint"', "")
    assert "a number from 1 to 10" in html
    html = root.post(
        address(stage, "policy/"), {"policy": "backfill", "arg-depth": "0"}
    ).content.decode()
    stage.vision_a.refresh_from_db()
    assert "greater than or equal to 1" in html
    assert stage.vision_a.policy == "fifo"


def test_prices_that_cannot_be_read_are_said_at_their_field(root: Client, stage: Stage) -> None:
    sent = {"policy": "gavel", "arg-prices": "A100"}
    html = root.post(address(stage, "policy/"), sent).content.decode()

    stage.vision_a.refresh_from_db()
    assert "Use pairs such as A100=3.2,V100=1.1, each price from 0.001 to 1000000." in html
    assert stage.vision_a.policy == "fifo"
    root.post(address(stage, "policy/"), {**sent, "arg-prices": "A100=3.2"})
    stage.vision_a.refresh_from_db()
    assert stage.vision_a.policy_args["prices"] == "A100=3.2"


def test_rules_around_a_policy_are_ticked_with_their_parameters(
    root: Client, stage: Stage
) -> None:
    sent = {"policy": "sia", "with-quota": "on", "with-quota-most": "0"}
    refused = root.post(address(stage, "policy/"), sent).content.decode()
    stage.vision_a.refresh_from_db()
    before = stage.vision_a.policy
    root.post(address(stage, "policy/"), {**sent, "with-quota-most": "8"})
    stage.vision_a.refresh_from_db()
    html = read(root, address(stage))

    assert "greater than or equal to 1" in refused
    assert before == "fifo"
    assert stage.vision_a.policy_args["wrap"] == {"quota": {"most": 8}}
    assert '<details class="rules" open>' in html
    assert 'name="with-quota-most" value="8"' in html
    assert " checked" in html.split('name="with-quota"')[1].split(">")[0]
    assert " checked" not in html.split('name="with-guarded"')[1].split(">")[0]


def test_who_stands_in_for_a_policy_is_told_on_the_page(root: Client, stage: Stage) -> None:
    type(stage.vision_a).objects.unscoped().filter(pk=stage.vision_a.pk).update(
        policy="sia",
        policy_args={"wrap": {"guarded": {"fallback": "srtf"}}},
        policy_fault="policy sia took too long",
        policy_fault_at=NOW,
    )

    assert "Fallback to srtf for sia since" in read(root, address(stage))


def test_a_policy_that_fails_is_told_on_the_page(root: Client, stage: Stage) -> None:
    type(stage.vision_a).objects.unscoped().filter(pk=stage.vision_a.pk).update(
        policy="sia", policy_fault="policy sia took <b>too</b> long", policy_fault_at=NOW
    )

    html = read(root, address(stage))

    assert "Fallback to first in, first out for sia since" in html
    assert "policy sia took &lt;b&gt;too&lt;/b&gt; long" in html


def test_the_fields_of_a_policy_are_a_part(root: Client, stage: Stage) -> None:
    assert 'name="arg-backfill"' in read(root, "/virtual-clusters/policy/?policy=fifo", **HTMX)
    assert read(root, "/virtual-clusters/policy/?policy=none", **HTMX).strip() == ""


def test_each_policy_reports_what_it_does_beside_the_choice(root: Client, stage: Stage) -> None:
    first, quotas = "Runs jobs by priority; within", "Queue quotas as in capacity; a job"

    for page in (read(root, address(stage)), read(root, "/virtual-clusters/new/")):
        said = words_of(page)
        assert f"Policy descriptions antman {policy_summary('antman')}" in said
        assert f"backfill {policy_summary('backfill')}" in said
        assert f"philly {quotas}" in said
        assert said.count(first) == 2
    chosen = words_of(read(root, "/virtual-clusters/policy/?policy=philly", **HTMX))
    assert chosen.startswith(quotas)


def test_every_policy_has_a_line_of_its_own() -> None:
    lines = dict(policy_summaries())

    assert set(lines) == set(POLICIES)
    assert len(set(lines.values())) == len(lines)
    assert all(line.endswith(".") and "`" not in line for line in lines.values())


def test_a_cap_of_nothing_is_no_cap(root: Client, stage: Stage) -> None:
    root.post(address(stage, "caps/"), {"max_devices_per_user": "4", "note": "n"})
    root.post(address(stage, "caps/"), {"max_devices_per_user": "", "note": "n"})

    stage.vision_a.refresh_from_db()
    assert stage.vision_a.max_devices_per_user is None
    assert stage.vision_a.note == "n"


def test_a_cap_below_one_is_reported_at_its_field(root: Client, stage: Stage) -> None:
    answer = root.post(address(stage, "caps/"), {"max_devices_per_user": "0"})

    assert answer.status_code == 422
    assert "greater than or equal to 1" in answer.content.decode()


def new(**changes: Any) -> dict[str, Any]:
    return {"name": "vision-b", "tenant": "vision", "policy": "fifo", NODE: "1", **changes}


def test_a_new_one_for_elastic_jobs_is_proposed_the_policy_that_decides_sizes(
    root: Client, stage: Stage
) -> None:
    plain, elastic, unknown = (
        read(root, f"/virtual-clusters/new/{query}")
        for query in ("", "?policy=tessera", "?policy=<b>")
    )

    assert "it also chooses their sizes and device types" in plain
    assert 'value="fifo" selected' in plain
    assert 'value="tessera" selected' in elastic
    assert 'name="arg-caution"' in elastic
    assert 'value="fifo" selected' in unknown


def test_a_virtual_cluster_is_made(root: Client, stage: Stage) -> None:
    answer = root.post("/virtual-clusters/new/", new(**{"arg-backfill": "on"}))

    vc = VirtualCluster.objects.unscoped().get(name="vision-b")
    assert answer.headers["Location"] == f"/virtual-clusters/{vc.pk}/"
    assert quotas(vc) == {"a-node": 1}
    assert vc.policy_args == {}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "a b"}, "Use 1 to 63 characters of"),
        ({"name": "vision-a"}, "exists or existed"),
        ({"tenant": "nobody"}, "Select a valid choice"),
        ({NODE: "2"}, "at most 1 fits"),
        ({"max_devices_per_user": "x"}, "Enter a whole number"),
    ],
)
def test_what_is_wrong_is_reported_and_nothing_is_made(
    root: Client, stage: Stage, changes: dict[str, str], said: str
) -> None:
    answer = root.post("/virtual-clusters/new/", new(**changes))
    only_asked = root.post("/virtual-clusters/new/", new(check="1", **changes))

    assert (answer.status_code, only_asked.status_code) == (422, 200)
    assert said in answer.content.decode()
    assert VirtualCluster.objects.unscoped().count() == 2


def test_an_empty_virtual_cluster_is_put_away(root: Client, stage: Stage) -> None:
    root.post("/virtual-clusters/new/", new())
    vc = VirtualCluster.objects.unscoped().get(name="vision-b")

    root.post(f"/virtual-clusters/{vc.pk}/archive/")

    vc.refresh_from_db()
    assert vc.archived_at is not None
    assert "Archived virtual cluster." in words_of(read(root, f"/virtual-clusters/{vc.pk}/"))


def test_one_with_jobs_is_not_put_away(root: Client, stage: Stage) -> None:
    answer = root.post(address(stage, "archive/"), follow=True)

    stage.vision_a.refresh_from_db()
    assert stage.vision_a.archived_at is None
    assert "jobs wait or run in vision-a" in answer.content.decode()


def test_without_tenants_or_cells_the_pages_teach_the_next_step(client: Client) -> None:
    make_user("root", is_cluster_admin=True)
    sign_in(client, "root")

    listed = words_of(read(client, "/virtual-clusters/"))
    made = words_of(read(client, "/virtual-clusters/new/"))

    assert "./tessera node add USER@HOST" in listed
    assert "No tenants yet" in made


def test_the_stepper_names_survive_any_chain_and_level() -> None:
    names = [cell_name(chain, "l:|\"'") for chain in ("a|b", "c,d", "é")]
    sent: Any = dict.fromkeys(names, "2")

    found = counts_sent(sent)

    assert found == {(chain, "l:|\"'"): 2 for chain in ("a|b", "c,d", "é")}
    assert all(json.loads(name.removeprefix("cells:")) for name in names)
