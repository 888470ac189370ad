"""The submit page: a form and a text in step, what would happen, and sending."""

import io
import json
import re
import tarfile
from typing import Any

import pytest
import yaml
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from portal.api.documents import submit_context_for
from portal.web.submit_check import check as check_text
from portal.web.submit_panel import panel_of
from portal.web.submit_text import read_typed
from scheduling.clusters.models import Node, Topology, VcLimit, VcQuota
from scheduling.core.explanations.variants import JobChange
from scheduling.core.messages import message
from scheduling.estimates.services.submit_plans import Fits, JobPlan
from scheduling.jobs.models import Job, SourceArchive
from tenants.models import Membership, Tenant
from tenants.roles import Role
from tests.factories.cluster import (
    NOW,
    job_document,
    make_job,
    make_shared_cluster,
    make_virtual_cluster,
    pin_cell,
)
from tests.factories.scheduling import start
from tests.factories.tenants import make_user, make_viewer
from tests.support.cluster_pages import markup_of, sign_in, words_of
from tests.support.submit_page import check_specification, form_fields, unescape

pytestmark = pytest.mark.django_db
TEXTAREA = re.compile(r'<textarea[^>]*name="([^"]+)"[^>]*>\n?(.*?)</textarea>', re.DOTALL)
SELECT = re.compile(r'<select[^>]*name="([^"]+)"[^>]*>(.*?)</select>', re.DOTALL)
TEXT = """\
# wider crop
name: hello   # short
virtual_cluster: vision-a
roles:
  worker:
    devices: 2
    command: |
      echo "$HOME"
      echo 'two'
"""
OPENPAI = """\
protocolVersion: 2
name: pai_job
type: job
prerequisites:
  - {name: img, type: dockerimage, uri: openpai/standard}
taskRoles:
  taskrole:
    instances: 1
    dockerImage: img
    resourcePerInstance: {gpu: 1, cpu: 2, memoryMB: 4096}
    commands: [echo hello]
defaults: {virtualCluster: vision-a}
"""


@pytest.fixture
def nodes() -> list[Node]:
    return make_shared_cluster(alice=Role.MEMBER, victor=Role.VIEWER)


@pytest.fixture
def alice(client: Client, nodes: list[Node]) -> Client:
    return sign_in(client, "alice")


BATCH = """#!/bin/bash
#SBATCH --job-name=sweep --partition=vision-a --gres=gpu:1
#SBATCH --array=1-2 --magic
./run "$SLURM_ARRAY_TASK_ID"
"""


def test_the_page_opens_with_a_sample_that_would_run(alice: Client) -> None:
    text = alice.get("/submit/").content.decode()

    assert "virtual_cluster: vision-a" in text
    assert "No errors" in text
    assert 'data-check-url="/submit/check/"' in text


@pytest.mark.parametrize("sample", ["hello", "gang", "torchrun", "sweep"])
def test_every_sample_is_a_job_that_can_be_sent(alice: Client, sample: str) -> None:
    assert "No errors" in alice.get(f"/submit/?template={sample}").content.decode()


def test_a_text_is_checked_and_fills_the_form(alice: Client) -> None:
    found = check_specification(alice, source="yaml", yaml=TEXT)

    assert found["errors"] == []
    assert found["yaml"] == TEXT
    assert found["fields"]["roles.worker.devices"] == "2"
    assert found["fields"]["roles.worker.command"] == "echo \"$HOME\"\necho 'two'\n"
    assert found["fields"]["roles.worker.within"] == "node"
    assert found["verdict"] == "Fits now: Starts in the next round"
    assert "On node-1 (devices 0, 1)." in found["plan"]


def test_a_field_changes_its_line_of_the_text_and_nothing_else(alice: Client) -> None:
    fields = check_specification(alice, source="yaml", yaml=TEXT)["fields"]
    posted = {name: value for name, value in fields.items() if isinstance(value, str)}
    posted |= {"held.shown": "1", "roles.worker.devices": "4", "source": "form", "yaml": TEXT}

    found = check_specification(alice, **posted)

    assert found["yaml"] == TEXT.replace("devices: 2", "devices: 4")


def test_what_the_script_is_told_is_in_the_language_of_the_page(alice: Client) -> None:
    def told(text: str) -> dict[str, Any]:
        sent = {"source": "yaml", "yaml": text}
        headers = {"Accept": "application/json", "Accept-Language": "zh-CN"}
        found: dict[str, Any] = alice.post("/submit/check/", sent, headers=headers).json()
        return found

    good, wrong = told(TEXT), told(TEXT.replace("devices: 2", "devices: 9"))

    assert good["summary"] == "没有错误"
    assert good["verdict"].startswith("现在放得下：")
    assert wrong["summary"] == "1 处错误，第 6 行"
    assert "设备" in wrong["errors"][0]["message"]


ELASTIC = TEXT + "elastic: {mode: logical_workers, logical_workers: 4, executors: 2}\n"


def test_how_many_processes_may_share_a_device_is_a_field_of_the_form(alice: Client) -> None:
    shown = check_specification(alice, source="yaml", yaml=ELASTIC)["fields"]
    posted = {name: value for name, value in shown.items() if isinstance(value, str)}
    posted |= {"elastic.executors": "99", "source": "form", "yaml": ELASTIC}

    changed = check_specification(alice, **posted)
    page = markup_of(alice.post("/submit/", posted).content.decode())

    assert shown["elastic.executors"] == "2"
    assert changed["yaml"] == ELASTIC.replace("executors: 2", "executors: 99")
    assert changed["errors"][0]["field"] == "elastic.executors"
    assert re.search(r'id="f-elastic-executors"[^>]* value="99"[^>]* aria-invalid="true"', page)
    assert 'id="error-elastic.executors"' in page


def test_all_that_is_wrong_comes_with_field_line_and_remedy(alice: Client) -> None:
    text = TEXT.replace("devices: 2", "devices: 9\n    memory: lots").replace("hello  ", "hello")

    errors = {
        error["field"]: error
        for error in check_specification(alice, source="yaml", yaml=text)["errors"]
    }
    mended = check_specification(
        alice, source="yaml", yaml=text.replace("memory: lots", "cpus: 1")
    )["errors"]

    assert errors["roles.worker.memory"]["line"] == 7
    assert errors["roles.worker.memory"]["remedy"]
    assert mended[0]["field"] == "roles.worker.devices"
    assert mended[0]["use"] == "8"


def test_an_unknown_cluster_or_type_comes_with_one_that_there_is(alice: Client) -> None:
    cluster = check_specification(alice, source="yaml", yaml=TEXT.replace("vision-a", "vison-a"))[
        "errors"
    ]
    kind = check_specification(
        alice, source="yaml", yaml=TEXT.replace("devices: 2", "device_types: [b]")
    )["errors"]

    assert (cluster[0]["field"], cluster[0]["use"]) == ("virtual_cluster", "vision-a")
    assert (kind[0]["field"], kind[0]["use"]) == ("roles.worker.device_types", "a")


@pytest.mark.parametrize(
    "text",
    ["", "- 1\n", "name: [", "name: a\nname: b\n", "\x00", "a: &x [*x, *x]", "!!python/name:os.x"],
)
def test_what_is_no_document_is_reported_and_kept(alice: Client, text: str) -> None:
    found = check_specification(alice, source="yaml", yaml=text)

    assert found["errors"]
    assert found["yaml"] == text
    assert "to fix" in found["plan"]


HALF_TYPED = TEXT.replace("virtual_cluster: vision-a", "virtual_clu")


def test_a_text_that_is_half_typed_leaves_the_form_as_it_was(alice: Client) -> None:
    two = TEXT + "  helper:\n    command: date\n"
    shown = check_specification(alice, source="yaml", yaml=two)["fields"]

    found = check_specification(alice, source="yaml", yaml=HALF_TYPED, **shown)

    assert found["is_kept"] is True
    assert not {"fields", "fields_html"} & set(found)
    assert found["errors"][0]["line"] == 3
    assert (
        found["summary"] == "Is not valid YAML: could not find expected ':' at line 3, column 1."
    )


def test_an_empty_text_may_be_filled_from_the_form(alice: Client) -> None:
    shown = check_specification(alice, source="yaml", yaml=TEXT)["fields"] | {"name": "again"}

    emptied = check_specification(alice, source="yaml", yaml=" ", **shown)
    filled = check_specification(alice, source="form", yaml=" ", **shown)

    assert not {"fields", "is_kept"} & set(emptied)
    assert filled["yaml"].startswith("name: again\n")


def test_without_scripts_a_text_that_cannot_be_read_leaves_the_form_as_it_was(
    alice: Client,
) -> None:
    posted = form_fields(alice) | {"yaml": HALF_TYPED}

    text = markup_of(alice.post("/submit/", posted).content.decode())

    assert 'name="name" value="hello"' in text
    assert "could not find expected" in text
    assert re.search(r"data-submit-kept>", text)
    assert re.search(r"data-submit-fields inert>", text)


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        (TEXT, "No errors"),
        (TEXT.replace("devices: 2", "devices: 99"), "1 error, line 6"),
        (TEXT.replace("devices: 2", "devices: -1\n    cpus: many"), "2 errors, lines 6, 7"),
        (
            "name: 'open\nheld: true\n",
            "Is not valid YAML: found unexpected end of stream at line 1, column 7.",
        ),
        ("name: a\nname: b\n", 'Has the key "name" twice, at line 2, column 1.'),
        ("- a\n", "1 error"),
    ],
)
def test_beside_the_text_stands_which_line_is_wrong(
    alice: Client, text: str, summary: str
) -> None:
    assert check_specification(alice, source="yaml", yaml=text)["summary"] == summary


def test_a_text_that_is_too_long_is_refused(alice: Client) -> None:
    response = alice.post(
        "/submit/check/", {"yaml": "x" * 600_000}, headers={"Accept": "application/json"}
    )

    assert response.status_code == 400


def test_hostile_words_are_shown_and_do_nothing(alice: Client) -> None:
    words = "</textarea><script>alert(1)</script>"

    found = check_specification(
        alice, source="yaml", yaml=f"name: '{words}'\nvirtual_cluster: '{words}'\n"
    )
    page = alice.post("/submit/", {"source": "yaml", "yaml": f"note: '{words}'"})

    assert "<script>" not in found["plan"]
    assert "<script>alert" not in page.content.decode()


def test_the_clusters_of_others_are_neither_offered_nor_accepted(alice: Client) -> None:
    page = alice.get("/submit/").content.decode()
    found = check_specification(alice, source="yaml", yaml=TEXT.replace("vision-a", "language"))

    assert 'value="language"' not in page
    assert 'value="vision-a"' in page
    assert found["errors"][0]["field"] == "virtual_cluster"


def test_a_role_is_added_and_removed(alice: Client) -> None:
    more = check_specification(alice, source="yaml", yaml=TEXT, change="add-role")
    fewer = check_specification(
        alice, source="yaml", yaml=more["yaml"], change="remove-role:worker-2"
    )

    assert "worker-2:" in more["yaml"]
    assert 'name="roles.worker-2.command"' in more["fields_html"]
    assert fewer["yaml"] == TEXT


def test_the_form_is_made_anew_only_when_the_roles_changed(alice: Client) -> None:
    same = check_specification(alice, source="yaml", yaml=TEXT, **{"roles.worker.devices": "2"})

    assert "fields_html" not in same


def test_a_job_that_has_to_wait_shows_the_reason_and_what_would_help(alice: Client) -> None:
    found = check_specification(alice, source="yaml", yaml=TEXT + "held: true\n")

    assert found["verdict"] == "Must wait: No start estimate yet"
    assert '<span class="code">held</span>' in found["plan"]
    assert '<ul class="unblock">' in found["plan"]


def test_the_panel_links_what_is_in_the_way_and_offers_what_starts_now(nodes: list[Node]) -> None:
    viewer = make_viewer("alice")
    typed = read_typed(TEXT)
    checked = check_text(typed, viewer=viewer, submit_context=submit_context_for(viewer))
    plan = JobPlan(
        fits=Fits.LATER,
        code="vc-guarantee-in-use",
        text="vision-a's 8 devices are in use.",
        blocked_by=(7,),
        blocked_by_others=2,
        alternatives=(
            JobChange(
                kind="type",
                how=message("on-type", type="b"),
                changes={"roles.worker.device_types": ["b", "c"]},
            ),
        ),
    )

    panel = panel_of(checked, plan)

    assert panel.summary == "vision-a's 8 devices are in use."
    assert panel.blocked_by == ((7, "/jobs/7/"),)
    assert panel.alternatives == (
        ("On devices of type b it starts now.", '{"roles.worker.device_types": "b, c"}'),
    )


def test_asking_stores_nothing(alice: Client) -> None:
    check_specification(alice, source="yaml", yaml=TEXT)
    check_specification(alice, source="yaml", yaml=OPENPAI)

    assert not Job.objects.unscoped().exists()


def test_an_openpai_job_is_understood_and_can_be_replaced_by_its_translation(
    alice: Client,
) -> None:
    asked = check_specification(alice, source="yaml", yaml=OPENPAI)
    replaced = check_specification(alice, source="yaml", yaml=OPENPAI, change="translate")

    assert "OpenPAI" in asked["plan"]
    assert asked["fields"]["roles.taskrole.cpus"] == "2"
    assert asked["yaml"] == OPENPAI
    assert "protocolVersion" not in replaced["yaml"]
    assert "taskrole:" in replaced["yaml"]


def test_a_batch_script_can_be_pasted_checked_and_sent(alice: Client) -> None:
    asked = check_specification(alice, source="yaml", yaml=BATCH)
    alice.post("/submit/", {"source": "yaml", "yaml": BATCH, "key": "b" * 32})

    jobs = list(Job.objects.unscoped().order_by("pk"))
    assert "Slurm" in asked["plan"]
    assert "The script creates 2 jobs" in asked["plan"]
    assert "--magic is not an option of sbatch." in asked["plan"]
    assert asked["fields"]["roles.worker.devices"] == "1"
    assert [job.name for job in jobs] == ["sweep 1", "sweep 2"]
    assert {(job.source_format, job.source_text) for job in jobs} == {("sbatch", BATCH)}


def test_a_list_of_hosts_is_no_job(alice: Client) -> None:
    asked = check_specification(alice, source="yaml", yaml="lab: {hosts: [bob@10.0.0.1]}\n")

    assert asked["errors"][0]["message"] == "This document is a list of nodes, not a job."


def test_without_scripts_the_form_sends_a_job(alice: Client) -> None:
    posted = form_fields(alice) | {"name": "by form", "roles.worker.devices": "2"}

    response = alice.post("/submit/", posted)

    job = Job.objects.unscoped().get()
    assert response.headers["Location"] == f"/jobs/{job.pk}/"
    assert (job.name, job.devices) == ("by form", 2)
    assert job.source_text.startswith("# A command and its devices.")


def test_without_scripts_a_changed_text_wins_over_the_form(alice: Client) -> None:
    posted = form_fields(alice)
    posted["yaml"] = posted["yaml"].replace("name: hello", "name: by text")

    alice.post("/submit/", posted)

    assert Job.objects.unscoped().get().name == "by text"


def test_without_scripts_what_is_wrong_is_at_its_field(alice: Client) -> None:
    posted = form_fields(alice) | {"roles.worker.devices": "many"}

    response = alice.post("/submit/", posted)

    text = markup_of(response.content.decode())
    assert response.status_code == 422
    assert not Job.objects.unscoped().exists()
    assert 'id="error-roles.worker.devices"' in text
    assert re.search(r'name="roles.worker.devices" value="many"[^>]*aria-invalid="true"', text)


def test_the_same_page_sent_twice_makes_one_job(alice: Client) -> None:
    posted = form_fields(alice)

    first, second = alice.post("/submit/", posted), alice.post("/submit/", posted)

    assert first.headers["Location"] == second.headers["Location"]
    assert Job.objects.unscoped().count() == 1


def test_a_page_that_is_changed_and_sent_again_asks_whether_that_is_meant(alice: Client) -> None:
    posted = form_fields(alice)
    alice.post("/submit/", posted)
    job = Job.objects.unscoped().get()
    changed = posted | {"name": "changed after going back"}

    asked = alice.post("/submit/", changed)

    html = asked.content.decode()
    fresh = re.search(r'name="key" value="([0-9a-f]{32})"', html)
    assert (asked.status_code, Job.objects.unscoped().count()) == (409, 1)
    assert f"This form has already submitted job {job.pk}, and" in html
    assert 'value="changed after going back"' in html
    assert fresh is not None
    assert fresh[1] != posted["key"]
    for _ in range(2):
        sent = alice.post("/submit/", changed | {"key": fresh[1]})
        assert sent.status_code == 302
    assert Job.objects.unscoped().count() == 2


def test_an_openpai_job_is_kept_as_it_was_sent(alice: Client) -> None:
    alice.post("/submit/", {"source": "yaml", "yaml": OPENPAI, "key": "a" * 32})

    job = Job.objects.unscoped().get()
    assert (job.source_format, job.source_text) == ("openpai", OPENPAI)


def test_a_viewer_may_not_send_anything(client: Client, nodes: list[Node]) -> None:
    sign_in(client, "victor")

    page = client.get("/submit/")
    response = client.post("/submit/", {"source": "yaml", "yaml": TEXT, "key": "a" * 32})

    assert page.status_code == 200
    assert response.status_code == 422
    assert not Job.objects.unscoped().exists()


def test_somebody_without_a_tenant_gets_a_page_and_a_reason(
    client: Client, nodes: list[Node]
) -> None:
    make_user("nobody")

    response = sign_in(client, "nobody").get("/submit/")

    assert response.status_code == 200
    assert "Virtual cluster not found" in response.content.decode()


def test_an_older_job_is_opened_as_it_was_written(alice: Client) -> None:
    alice.post("/submit/", {"source": "yaml", "yaml": TEXT, "key": "a" * 32})
    job = Job.objects.unscoped().get()

    assert form_fields(alice, f"/submit/?clone={job.pk}")["yaml"] == TEXT


def test_an_older_job_with_secrets_asks_for_them_again(alice: Client) -> None:
    job = make_job(worker={"secrets": {"TOKEN": "do-not-show-this"}})

    text = alice.get(f"/submit/?clone={job.pk}").content.decode()

    assert "Enter them again: worker/TOKEN" in text
    assert "(redacted)" not in text
    assert "do-not-show-this" not in text


def test_the_job_of_another_tenant_is_not_opened(alice: Client) -> None:
    theirs = make_job("bob", job_document(virtual_cluster="language"))

    assert alice.get(f"/submit/?clone={theirs.pk}").status_code == 404


def test_an_archive_goes_with_the_form_and_is_named_in_the_document(
    alice: Client, tmp_path: object
) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        member = tarfile.TarInfo("train.py")
        member.size = 2
        archive.addfile(member, io.BytesIO(b"ok"))
    upload = SimpleUploadedFile("src.tar.gz", packed.getvalue())

    found = check_specification(alice, source="yaml", yaml=TEXT, change="upload", upload=upload)

    stored = SourceArchive.objects.unscoped().get()
    assert found["errors"] == []
    assert f"archive: {stored.sha256}" in found["yaml"]
    assert found["yaml"].startswith("# wider crop")


def test_what_is_no_archive_is_refused_at_its_field(alice: Client) -> None:
    upload = SimpleUploadedFile("src.tar.gz", b"no archive")

    found = check_specification(alice, source="yaml", yaml=TEXT, change="upload", upload=upload)

    assert found["errors"][0]["field"] == "source.archive"
    assert not SourceArchive.objects.unscoped().exists()


def test_opening_and_checking_take_a_fixed_number_of_queries(
    alice: Client, django_assert_num_queries: Any
) -> None:
    for _ in range(5):
        make_job()

    alice.get("/submit/")  # what is announced to all is read once for a while
    with django_assert_num_queries(16):
        alice.get("/submit/")
    check_specification(alice, source="yaml", yaml=TEXT)  # how things stand is read once
    with django_assert_num_queries(28):
        check_specification(alice, source="yaml", yaml=TEXT)


def test_a_rack_is_not_offered_and_says_so_where_it_stands(alice: Client) -> None:
    page = alice.get("/submit/").content.decode()
    offered = re.findall(r'name="roles\.\w+\.within"[^>]*value="(\w+)"', page)
    text = TEXT.replace("command:", "within: rack\n    command:", 1)

    found = check_specification(alice, source="yaml", yaml=text)

    assert offered == ["device", "pcie", "nvlink", "numa", "socket", "node"]
    assert [fault["field"] for fault in found["errors"]] == ["roles.worker.within"]
    assert "device, pcie, socket, node" in found["errors"][0]["message"]


def test_a_rack_is_offered_where_nodes_lie_in_one(alice: Client) -> None:
    now = Topology.objects.get()
    types = {**now.spec["cell_types"], "a-rack": {"child": "a-node", "count": 3}}
    rack = {"type": "a-rack", "address": "rack-1", "children": now.spec["physical"]}
    spec = {**now.spec, "cell_types": types, "physical": [rack]}
    Topology.objects.create(version=2, spec=spec, created_at=now.created_at)

    page = alice.get("/submit/").content.decode()

    assert re.findall(r'name="roles\.\w+\.within"[^>]*value="(\w+)"', page)[-1] == "rack"


PINS = re.compile(r'<select[^>]*name="roles\.worker\.pinned_cell"[^>]*>(.*?)</select>', re.DOTALL)


def pins_in(html: str) -> list[str] | None:
    shown = PINS.search(html)
    return re.findall(r'<option value="([^"]*)"', shown[1]) if shown else None


def test_pinned_cells_are_offered_where_the_virtual_cluster_has_some(alice: Client) -> None:
    bare = alice.get("/submit/").content.decode()
    pin_cell("vision-a", "lab", "node-2/0")
    pin_cell("language", "theirs", "node-2/1")
    page = alice.get("/submit/").content.decode()

    assert pins_in(bare) is None
    assert pins_in(page) == ["", "lab"]
    assert form_fields(alice)["pins"] == "lab"


def test_a_pinned_cell_is_chosen_in_the_form_and_written_into_the_text(alice: Client) -> None:
    VcQuota.objects.filter(virtual_cluster__name="language").delete()
    pin_cell("vision-a", "lab", "node-2/0")
    form = form_fields(alice)

    found = check_specification(
        alice, **form | {"source": "form", "roles.worker.pinned_cell": "lab"}
    )

    assert found["errors"] == []
    assert "pinned_cell: lab" in found["yaml"]
    assert "fields_html" not in found
    assert "On node-2" in found["plan"]


def test_another_virtual_cluster_brings_its_own_pinned_cells(alice: Client) -> None:
    VcQuota.objects.filter(virtual_cluster__name="language").delete()
    make_virtual_cluster("vision-b", Tenant.objects.unscoped().get(name="vision"), cells=0)
    pin_cell("vision-b", "lab", "node-2/0")
    form = form_fields(alice)

    found = check_specification(alice, **form | {"source": "form", "virtual_cluster": "vision-b"})
    same = check_specification(alice, **form | {"source": "form", "note": "more"})

    assert pins_in(found["fields_html"]) == ["", "lab"]
    assert "fields_html" not in same


def test_a_pinned_cell_that_is_not_there_is_shown_with_its_fault(alice: Client) -> None:
    text = TEXT.replace("devices: 2", "pinned_cell: gone")

    found = check_specification(alice, source="yaml", yaml=text, **{"roles.worker.devices": "2"})

    assert pins_in(found["fields_html"]) == ["", "gone"]
    assert [fault["field"] for fault in found["errors"]] == ["roles.worker.pinned_cell"]
    assert "Omit pinned_cell" in found["errors"][0]["remedy"]


WATCHED = {
    "notify.on": "failed, idle",
    "notify.to": "victor",
    "idle_policy.below": "10",
    "idle_policy.warn_after": "20m",
    "idle_policy.stop_after": "never",
    "log_rules": "exclude-node (ecc): uncorrectable ECC\nlabel: NaN: loss",
}


def test_mails_idling_and_rules_about_logs_are_written_by_the_form_and_read_back(
    alice: Client,
) -> None:
    found = check_specification(alice, **form_fields(alice) | {"source": "form", **WATCHED})
    document = read_typed(found["yaml"]).document or {}
    fields = check_specification(alice, source="yaml", yaml=found["yaml"])["fields"]

    assert found["errors"] == []
    assert document["notify"] == {"on": ["failed", "idle"], "to": ["victor"]}
    assert document["idle_policy"] == {"below": 10, "warn_after": "20m", "stop_after": "never"}
    assert document["log_rules"] == [
        {"name": "ecc", "pattern": "uncorrectable ECC", "action": "exclude-node"},
        {"pattern": "NaN: loss", "action": "label"},
    ]
    assert {name: fields[name] for name in WATCHED} == WATCHED


def test_faults_of_what_is_watched_stand_at_their_fields(alice: Client) -> None:
    wrong = {
        "notify.on": "sometimes",
        "idle_policy.below": "0",
        "idle_policy.warn_after": "1s",
        "log_rules": "no action here",
    }

    found = check_specification(alice, **form_fields(alice) | {"source": "form", **wrong})

    assert {fault["field"] for fault in found["errors"]} == set(wrong)


def test_a_job_is_left_alone_when_idle_by_the_form(alice: Client) -> None:
    found = check_specification(
        alice, **form_fields(alice) | {"source": "form", "idle_policy": "none"}
    )

    assert found["errors"] == []
    assert "idle_policy: none" in found["yaml"]


def chosen_cluster(client: Client, query: str = "") -> str:
    return form_fields(client, f"/submit/{query}")["virtual_cluster"]


def test_the_form_begins_with_the_cluster_that_was_used_last(alice: Client) -> None:
    vision = Tenant.objects.unscoped().get(name="vision")
    make_virtual_cluster("a-first-by-name", vision)
    make_job(document=job_document(virtual_cluster="vision-a"))

    assert chosen_cluster(alice) == "vision-a"
    assert chosen_cluster(alice, "?virtual_cluster=a-first-by-name") == "a-first-by-name"
    make_job(document=job_document(virtual_cluster="a-first-by-name"))
    assert chosen_cluster(alice) == "a-first-by-name"


def test_without_jobs_it_begins_with_most_idle_guaranteed_devices(alice: Client) -> None:
    # Both have a guarantee of one node; that of the first by name is in use.
    vision = Tenant.objects.unscoped().get(name="vision")
    make_virtual_cluster("a-first-by-name", vision)
    make_virtual_cluster("a-without-guarantee", vision, cells=0)
    Membership.objects.create(
        tenant=vision, user=make_user("bea"), role=Role.MEMBER, created_at=NOW
    )
    VcQuota.objects.filter(virtual_cluster__name="language").delete()
    start(make_job("bea", job_document(virtual_cluster="a-first-by-name", worker={"devices": 8})))

    assert chosen_cluster(alice) == "vision-a"


def test_jobs_that_wait_count_as_demand_of_the_cluster_to_begin_with(alice: Client) -> None:
    make_virtual_cluster("a-first-by-name", Tenant.objects.unscoped().get(name="vision"))
    VcQuota.objects.filter(virtual_cluster__name="language").delete()
    Membership.objects.create(
        tenant=Tenant.objects.unscoped().get(name="vision"),
        user=make_user("bea"), role=Role.MEMBER, created_at=NOW,
    )  # fmt: skip

    assert chosen_cluster(alice) == "a-first-by-name"

    make_job("bea", job_document(virtual_cluster="a-first-by-name"))
    assert chosen_cluster(alice) == "vision-a"


def test_a_limited_person_begins_with_a_cluster_that_may_be_used(alice: Client) -> None:
    vision = Tenant.objects.unscoped().get(name="vision")
    make_virtual_cluster("a-first-by-name", vision)
    limited = make_virtual_cluster("z-without-guarantee", vision, cells=0)
    VcQuota.objects.filter(virtual_cluster__name="language").delete()
    VcLimit.objects.create(
        membership=Membership.objects.unscoped().get(tenant=vision, user__username="alice"),
        virtual_cluster=limited,
    )

    assert chosen_cluster(alice) == "z-without-guarantee"


def test_the_panel_tells_what_is_left_out_from_what_is_not_supported(alice: Client) -> None:
    script = """#!/bin/bash
#SBATCH --partition=vision-a --gres=gpu:1
#SBATCH --output=log --magic
srun ./train
"""

    panel = words_of(check_specification(alice, yaml=script, source="yaml")["plan"])

    translated, _, rest = panel.partition("Left out")
    left_out, _, not_supported = rest.partition("Not supported")
    assert "Translated" in translated
    assert "--output" in left_out
    assert "--magic" in not_supported
    assert "understood" not in panel


def test_json_that_was_sent_opens_as_yaml_with_the_same_values(alice: Client) -> None:
    document = job_document(
        name="vit-small ablation", worker={"memory": "4GiB", "command": "echo a\necho b\n"}
    )
    sent = json.dumps(document)
    body = alice.post("/api/v1/jobs/", sent, content_type="application/json").json()

    text = form_fields(alice, f"/submit/?clone={body['id']}")["yaml"]
    page = alice.get(f"/jobs/{body['id']}/spec/").content.decode()

    assert text.startswith("name: vit-small ablation\nvirtual_cluster: vision-a\n")
    assert "memory: 4GiB" in text
    assert "command: |" in text
    assert yaml.safe_load(text) == document
    assert '"roles": {\n' in unescape(page)
    assert sent not in unescape(page)


def test_fields_without_a_value_show_their_defaults(alice: Client) -> None:
    job = make_job(document={**job_document(), "roles": {"worker": {"command": "ls"}}})

    page = alice.get(f"/submit/?clone={job.pk}").content.decode()

    for name in ("instances", "devices"):
        (tag,) = re.findall(rf'<input[^>]*name="roles.worker.{name}"[^>]*>', page)
        assert 'placeholder="1"' in tag


ARRAY = """#!/bin/bash
#SBATCH --partition=vision-a --gres=gpu:{each} --time=20
#SBATCH --array=1-3
./run
"""


@pytest.mark.parametrize(
    ("each", "verdict", "cost"),
    [
        (1, "Fits now: All 3 jobs start in the next round", "at most 1.0 device-hours"),
        (4, "Must wait: 2 of 3 jobs start in the next round", "at most 4.0 device-hours"),
    ],
)
def test_an_array_is_planned_and_priced_whole(
    alice: Client, each: int, verdict: str, cost: str
) -> None:
    found = check_specification(alice, yaml=ARRAY.format(each=each), source="yaml")

    panel = words_of(found["plan"])
    assert found["verdict"] == verdict
    assert cost in panel
    assert "3 jobs, each " in panel
    assert "First job: on node-" in panel
    assert "each at most 20 min after the start" in panel.replace("\u00a0", " ")


def preview_of_sweep(client: Client, *, each: int = 1, **fields: str) -> str:
    document = job_document(worker={"devices": each})
    form = {
        "yaml": yaml.safe_dump({**document, "max_duration": "20m"}),
        "parameters": "LR = 1, 2, 3",
        "max_parallel": "",
        **fields,
    }
    answer = client.post("/sweeps/check/", form)
    assert answer.status_code == 200
    without_script = client.post("/sweeps/new/", {**form, "change": "check"})
    assert words_of(answer.content.decode()) in words_of(without_script.content.decode())
    assert not Job.objects.unscoped().filter(labels__has_key="sweep").exists()
    return words_of(unescape(answer.content.decode())).replace("\u00a0", " ")


@pytest.mark.parametrize(
    ("each", "verdict", "cost"),
    [
        (1, "Fits now All 3 jobs start in the next round", "at most 1.0 device-hours: 3 jobs"),
        (4, "Must wait 2 of 3 jobs start in the next round", "at most 4.0 device-hours: 3 jobs"),
    ],
)
def test_a_sweep_is_planned_and_priced_whole(
    alice: Client, each: int, verdict: str, cost: str
) -> None:
    panel = preview_of_sweep(alice, each=each)

    assert panel.startswith(verdict)
    assert cost in panel
    assert "First job: on node-" in panel


def test_a_sweep_is_planned_up_to_its_limit(alice: Client) -> None:
    panel = preview_of_sweep(alice, each=4, max_parallel="2")

    assert panel.startswith("Fits now 2 of 3 jobs start in the next round")
    assert "At most 2 of 3 jobs run at a time. The others are on hold." in panel


def test_the_preview_of_a_sweep_names_what_is_not_valid(alice: Client) -> None:
    assert "This is not a valid number of jobs." in preview_of_sweep(alice, max_parallel="0")
    assert "Give each value once." in preview_of_sweep(alice, parameters="LR = 1, 1")
    assert "1 error to fix" in preview_of_sweep(alice, yaml="name: [")
