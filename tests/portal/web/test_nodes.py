"""Nodes: the list, one node, holding it back, adding it by its key, editing and removing it."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from portal.web.node_forms import AddForm, EditForm
from scheduling.clusters.models import Device, Node, NodeTenancy
from scheduling.runs.models import CanaryRun, Member
from tenants.keyring import SshKey, forget_keys
from tenants.models import AuditEntry, Tenant
from tests.factories.tenants import make_user
from tests.support.cluster_pages import HTMX, Stage, make_stage, read, sign_in, words_of
from tests.support.ssh_greeter import Greeter, ssh_greeter
from workers.models import NodeTelemetry

pytestmark = pytest.mark.django_db


@pytest.fixture
def stage() -> Stage:
    return make_stage()


@pytest.fixture
def root(client: Client, stage: Stage) -> Client:
    return sign_in(client, "root")


@pytest.fixture
def greeter() -> Iterator[Greeter]:
    with ssh_greeter() as found:
        yield found


def listed(client: Client, query: str = "") -> list[str]:
    return re.findall(
        r'<tr data-key="\d+"[^>]* data-name="([^"]+)"', read(client, f"/nodes/{query}")
    )


def test_the_list_says_state_use_and_whether_all_sides_agree(root: Client, stage: Stage) -> None:
    said = words_of(read(root, "/nodes/"))

    assert "Nodes 3 3 ready" in said
    assert "Ready node-1" in said
    assert "2 of 8" in said
    assert "agree" in said
    assert "Inconsistent nodes 0" in said


def test_a_node_without_a_healthy_device_shows_the_reason_although_it_answers(
    root: Client, stage: Stage
) -> None:
    broken = "devices.json: is no JSON"
    Node.objects.filter(name="node-2").update(
        inventory={"warnings": [broken]}, probed_at=timezone.now()
    )
    Device.objects.filter(node__name="node-2").update(healthy=False)

    listed = words_of(read(root, "/nodes/"))
    shown = words_of(read(root, f"/nodes/{Node.objects.get(name='node-2').pk}/"))

    assert f"Ready no healthy device: {broken} node-2" in listed
    assert f"Probe warnings {broken}" in shown


def test_the_list_is_narrowed_by_state_type_and_text(root: Client, stage: Stage) -> None:
    Node.objects.filter(name="node-2").update(state="suspect", labels={"rack": "Rack 7"})

    assert listed(root, "?state=suspect") == ["node-2"]
    assert listed(root, "?q=rack+7") == ["node-2"]
    assert listed(root, "?type=b") == []
    assert listed(root, "?q=NODE-3") == ["node-3"]


def test_the_list_shows_isolation_levels_and_owners_and_is_narrowed_by_level(
    client: Client, stage: Stage
) -> None:
    Node.objects.filter(name="node-1").update(isolation_level="none")
    vision = Tenant.objects.unscoped().get(name="vision")
    Node.objects.filter(name="node-2").update(isolation_level="user", dedicated_to=[vision.pk])
    NodeTenancy.objects.create(node=stage.nodes[0], tenant=vision, taken_at=timezone.now())

    root = sign_in(client, "root")
    everything = words_of(read(root, "/nodes/"))

    assert "none vision" in everything
    assert "user only vision" in everything
    assert "unknown" in everything
    assert listed(root, "?isolation=user") == ["node-2"]
    assert listed(root, "?isolation=namespace") == []
    assert "Show all" in words_of(read(root, "/nodes/?isolation=namespace"))


def test_the_rows_alone_are_a_part_with_the_numbers_beside(root: Client, stage: Stage) -> None:
    html = read(root, "/nodes/", **HTMX)

    assert "<html" not in html
    assert html.count('data-key="') == 3
    assert 'id="node-stats" hx-swap-oob="true"' in html
    assert "csrfmiddlewaretoken" not in html


def test_a_reason_of_the_connection_is_for_those_who_manage_nodes(
    client: Client, stage: Stage
) -> None:
    Node.objects.filter(name="node-1").update(
        state="down", contact="down", state_reason="no route to 10.1.2.3:22"
    )

    assert "10.1.2.3" in read(sign_in(client, "root"), "/nodes/")
    assert "10.1.2.3" in read(client, f"/nodes/{stage.nodes[0].pk}/")
    sign_in(client, "alice")
    assert "10.1.2.3" not in read(client, "/nodes/")
    assert "10.1.2.3" not in read(client, f"/nodes/{stage.nodes[0].pk}/")
    assert "127.0.0.1" not in read(client, f"/nodes/{stage.nodes[0].pk}/")


def test_a_node_that_never_answered_reports_how_to_let_the_portal_in(
    client: Client, stage: Stage, settings: Any, tmp_path: Path
) -> None:
    settings.TESSERA = replace(settings.TESSERA, data_dir=tmp_path)
    (tmp_path / "ssh").mkdir()
    key = SshKey.generate()
    (tmp_path / "ssh" / "id_ed25519").write_text(key.private)
    forget_keys()
    node = stage.nodes[0]
    address, command = f"/nodes/{node.pk}/", f"{key.public} tessera&#x27; &gt;&gt; ~/.ssh/auth"
    Node.objects.filter(pk=node.pk).update(state="suspect", contact="suspect", probed_at=None)

    assert command in read(sign_in(client, "root"), address)
    assert "new jobs are placed on other nodes" not in read(client, address)
    assert command not in read(sign_in(client, "alice"), address)
    Node.objects.filter(pk=node.pk).update(probed_at=timezone.now(), state_reason="no answer")
    again = read(sign_in(client, "root"), address, **HTMX)
    assert command not in again
    assert "new jobs are placed on other nodes" in again
    assert 'id="node-state" hx-swap-oob="true"' in again
    assert "Suspect for" in words_of(again)


def test_three_columns_of_truth_group_devices_that_report_the_same(
    root: Client, stage: Stage
) -> None:
    NodeTelemetry.objects.create(
        node=stage.nodes[0], at=timezone.now(), utilisation=[0.4, 0.6, *[0.0] * 6]
    )

    said = words_of(read(root, f"/nodes/{stage.nodes[0].pk}/"))

    assert f"0 – 1 database {stage.running.pk} train-a runner pid 4711 device present" in said
    assert "50 % busy agree" in said
    assert "2 – 7 database none runner none" in said
    assert "No unknown processes." in said


def test_what_does_not_fit_is_reported_at_the_device(root: Client, stage: Stage) -> None:
    node = stage.nodes[0]
    Node.objects.filter(pk=node.pk).update(inventory={"devices": [{"index": 1}]})

    said = words_of(read(root, f"/nodes/{node.pk}/"))

    assert "leased, but the device is gone" in said
    assert "inconsistent devices" in said


def test_a_device_that_is_out_shows_the_reason(root: Client, stage: Stage) -> None:
    Device.objects.filter(node=stage.nodes[0], index=6).update(
        healthy=False, health_reason="fell off the bus"
    )

    said = words_of(read(root, f"/nodes/{stage.nodes[0].pk}/"))

    assert "1 device is unhealthy. Device 6: fell off the bus." in said


def test_a_gpu_shows_its_identity_its_conditions_and_its_load(root: Client, stage: Stage) -> None:
    node = stage.nodes[0]
    Device.objects.filter(node=node, index=6).update(
        uuid="GPU-b", is_gpu=True, pci_address="0000:3b:00.0", model="A100", driver_index=5
    )
    conditions = [
        {"code": "ecc-uncorrectable", "detail": "3 since the driver was loaded", "uuid": "GPU-b"},
        {"code": "driver-hung"},
    ]
    Node.objects.filter(pk=node.pk).update(
        inventory={**node.inventory, "conditions": conditions, "driver": "535.1", "cuda": "12.2"}
    )
    NodeTelemetry.objects.create(
        node=node, at=timezone.now(), span_seconds=60, samples=1, temperature=[None] * 6 + [71.0]
    )

    said = words_of(read(root, f"/nodes/{node.pk}/"))

    assert "A100 GPU-b 0000:3b:00.0 driver index 5 71 °C" in said
    assert "uncorrectable memory errors 3 since the driver was loaded" in said
    assert "The GPU driver does not respond." in said
    assert "535.1, CUDA 12.2" in said


def test_cordon_drain_and_use_again(root: Client, stage: Stage) -> None:
    node = stage.nodes[0]

    root.post(f"/nodes/{node.pk}/cordon/", {"reason": "disk swap"})
    node.refresh_from_db()
    cordoned = (node.state, node.held_reason)
    root.post(f"/nodes/{node.pk}/drain/", {"reason": "driver"})
    node.refresh_from_db()
    drained = node.state
    root.post(f"/nodes/{node.pk}/uncordon/")
    node.refresh_from_db()

    assert cordoned == ("cordoned", "disk swap")
    assert drained == "draining"
    assert node.state == "ready"
    assert AuditEntry.objects.unscoped().filter(action="node.cordon", message="disk swap").exists()


def buttons(html: str) -> list[str]:
    """What can be done to a node, as its page offers it."""
    return re.findall(r'<button [^>]*form="do-([a-z-]+)"', html)


def test_the_live_part_brings_the_buttons_that_the_state_allows(
    root: Client, stage: Stage
) -> None:
    used, empty = stage.nodes[0], stage.nodes[2]

    def offered(node: Node, **changes: str) -> list[str]:
        Node.objects.filter(pk=node.pk).update(**changes)
        part = read(root, f"/nodes/{node.pk}/", **HTMX)
        assert 'id="node-acts" hx-swap-oob="true"' in part
        return buttons(part)

    assert offered(used) == buttons(read(root, f"/nodes/{used.pk}/")) == ["cordon", "drain"]
    assert offered(used, held="cordoned") == ["uncordon", "drain"]
    assert offered(used, held="draining") == ["uncordon", "cordon"]
    assert offered(empty) == ["cordon", "drain"]
    assert offered(empty, held="cordoned") == ["uncordon"]
    assert offered(empty, contact="down") == ["uncordon", "declare-dead"]


def test_each_button_has_its_form_outside_of_the_live_part(root: Client, stage: Stage) -> None:
    shown = read(root, f"/nodes/{stage.nodes[0].pk}/")

    forms = re.findall(r'<form id="do-([a-z-]+)" method="post" action="([^"]+)"', shown)

    own = f"/nodes/{stage.nodes[0].pk}"
    verbs = ("cordon", "drain", "uncordon", "declare-dead", "reset-isolation")
    assert forms == [(verb, f"{own}/{verb}/") for verb in verbs]


def test_whoever_may_not_act_on_a_node_gets_no_button(client: Client, stage: Stage) -> None:
    address = f"/nodes/{stage.nodes[0].pk}/"

    assert buttons(read(sign_in(client, "lena"), address)) == []
    assert buttons(read(client, address, **HTMX)) == []
    assert "do-cordon" not in read(client, address)


def test_without_a_reason_the_page_asks_for_it_and_nothing_happens(
    root: Client, stage: Stage
) -> None:
    node = stage.nodes[0]

    first = root.post(f"/nodes/{node.pk}/cordon/").content.decode()
    again = root.post(f"/nodes/{node.pk}/cordon/", {"asked": "yes", "reason": " "})

    node.refresh_from_db()
    assert node.state == "ready"
    assert "Cordon node-1?" in words_of(first)
    assert "The reason is empty" in again.content.decode()


def test_a_node_that_answers_is_not_declared_dead(root: Client, stage: Stage) -> None:
    node = stage.nodes[0]

    answer = root.post(f"/nodes/{node.pk}/declare-dead/", {"reason": "gone"}, follow=True)

    node.refresh_from_db()
    assert "it is not dead" in answer.content.decode()
    assert node.declared_dead_at is None


@pytest.mark.parametrize("verb", ["cordon", "drain", "uncordon", "declare-dead", "remove"])
def test_only_cluster_admins_act_on_nodes(client: Client, stage: Stage, verb: str) -> None:
    node = stage.nodes[2]

    answer = sign_in(client, "lena").post(f"/nodes/{node.pk}/{verb}/", {"reason": "mine"})

    node.refresh_from_db()
    assert node.state == "ready"
    assert node.removed_at is None
    assert answer.status_code in {302, 403}


def test_an_unknown_act_does_not_exist(root: Client, stage: Stage) -> None:
    assert root.post(f"/nodes/{stage.nodes[0].pk}/explode/").status_code == 404


def test_an_empty_list_gives_the_command(client: Client) -> None:
    make_user("root", is_cluster_admin=True)

    said = words_of(read(sign_in(client, "root"), "/nodes/"))

    assert "No nodes yet" in said
    assert "./tessera node add USER@HOST" in said


def form(greeter: Greeter, **changes: object) -> dict[str, object]:
    values = {"name": "gpu-9", "host": "127.0.0.1", "port": greeter.port, "user": "ops"}
    return {**values, "labels": "rack=Rack 9, zone=b", **changes}


def test_whoever_adds_a_node_is_told_the_key_that_it_has_to_let_in(
    root: Client, settings: Any, tmp_path: Path
) -> None:
    settings.TESSERA = replace(settings.TESSERA, data_dir=tmp_path)
    before = read(root, "/nodes/new/")
    (tmp_path / "ssh").mkdir()
    key = SshKey.generate()
    (tmp_path / "ssh" / "id_ed25519").write_text(key.private)
    forget_keys()

    after = read(root, "/nodes/new/")

    assert "authorized_keys" not in before
    assert f"echo &#x27;{key.public} tessera&#x27; &gt;&gt; ~/.ssh/authorized_keys" in after


def test_a_node_is_added_once_its_key_is_confirmed(root: Client, greeter: Greeter) -> None:
    seen = root.post("/nodes/new/", form(greeter)).content.decode()
    before = Node.objects.filter(name="gpu-9").exists()
    root.post(
        "/nodes/new/",
        form(greeter, host_key=greeter.key, fingerprint=greeter.fingerprint, confirm="yes"),
    )

    node = Node.objects.get(name="gpu-9")
    assert greeter.fingerprint in seen
    assert not before
    assert (node.host_key, node.labels) == (greeter.key, {"rack": "Rack 9", "zone": "b"})
    said = words_of(read(root, f"/nodes/{node.pk}/"))
    assert "The node has not responded yet" in said


def test_a_fingerprint_of_another_key_stores_nothing(root: Client, greeter: Greeter) -> None:
    wrong = "SHA256:" + "A" * 43

    html = root.post(
        "/nodes/new/", form(greeter, host_key=greeter.key, fingerprint=wrong, confirm="yes")
    ).content.decode()

    assert not Node.objects.filter(name="gpu-9").exists()
    assert "has the fingerprint" in html


def test_a_machine_that_does_not_answer_is_reported_at_the_host(root: Client) -> None:
    with ssh_greeter() as gone:
        port = gone.port

    said = words_of(
        root.post(
            "/nodes/new/", {"name": "x", "host": "127.0.0.1", "port": port, "user": "ops"}
        ).content.decode()
    )

    assert "No SSH server responds" in said


# a field of the form, what is typed, what is said
REFUSED = [
    ("name", "", "This field is required"),
    ("name", "-bad-", "1 to 63 of A-Z"),
    ("name", "n" * 64, "at most 63"),
    ("host", "", "This field is required"),
    ("host", "a b; rm -rf /", "Use a host name"),
    ("port", "70000", "65535"),
    ("port", "0", "greater than or equal to 1"),
    ("port", "ssh", "Enter a whole number"),
    ("user", "", "This field is required"),
    ("user", "$(id)", "the name of an account"),
    ("user", "u" * 65, "at most 64"),
    ("labels", "rack", "Use name=value"),
    ("labels", "a=1, a=2", "each name once"),
    ("labels", "a b=1", "This is not a valid label"),
    ("jump_host", "bastion", "Use USER@HOST"),
    ("jump_host", "j" * 331, "at most 330"),
    ("jump_host", "ops@127.0.0.1:1", "No SSH server responds"),
]
# fields of the second step, sent with the confirmation
REFUSED_KEYS = [
    ("host_key", "no key", "Give the public key line"),
    ("host_key", "k" * 16_385, "at most 16384"),
    ("fingerprint", "SHA256:" + "A" * 43, "has the fingerprint"),
    ("fingerprint", "f" * 101, "at most 100"),
    ("jump_key", "k" * 16_385, "at most 16384"),
]


def test_the_tables_of_refusals_cover_every_field_of_the_form() -> None:
    covered = {field for field, *_ in (*REFUSED, *REFUSED_KEYS)}

    assert set(AddForm.base_fields) == covered
    others = {"version", "dedicated_to", "visible_paths", "job_network", "data_interface"}
    others |= {"jump_fingerprint", "device_cpus", "device_memory_bytes"}
    assert set(EditForm.base_fields) - covered == others


@pytest.mark.parametrize(("field", "value", "said"), REFUSED_KEYS)
def test_a_key_that_is_none_stores_nothing(
    root: Client, greeter: Greeter, field: str, value: str, said: str
) -> None:
    confirmed = {"host_key": greeter.key, "fingerprint": greeter.fingerprint, "confirm": "yes"}

    html = root.post("/nodes/new/", form(greeter, **{**confirmed, field: value})).content.decode()

    assert said in html
    assert not Node.objects.filter(name="gpu-9").exists()


@pytest.mark.parametrize("version", ["", "new", "1.5"])
def test_an_edit_without_its_version_writes_nothing(
    root: Client, stage: Stage, version: str
) -> None:
    node = stage.nodes[0]

    root.post(f"/nodes/{node.pk}/edit/", edit_form(node, user="late", version=version))

    node.refresh_from_db()
    assert node.user != "late"


@pytest.mark.parametrize(("field", "value", "said"), REFUSED)
def test_wrong_values_are_named_and_nothing_is_asked(
    root: Client, greeter: Greeter, field: str, value: str, said: str
) -> None:
    answer = root.post("/nodes/new/", form(greeter, **{field: value}))

    html = answer.content.decode()
    assert answer.status_code == 422
    assert said in html
    assert "Confirm the host key" not in html


def edit_form(node: Node, **changes: object) -> dict[str, object]:
    values = {"host": node.host, "port": node.port, "user": node.user, "version": node.version}
    return {**values, "labels": "", **changes}


def test_an_edit_writes_address_and_labels(root: Client, stage: Stage) -> None:
    node = stage.nodes[0]

    root.post(f"/nodes/{node.pk}/edit/", edit_form(node, labels="rack=Rack 2", user="ops"))

    node.refresh_from_db()
    assert (node.user, node.labels) == ("ops", {"rack": "Rack 2"})


def test_a_jump_host_is_edited_with_the_fingerprint_of_its_key(
    root: Client, stage: Stage, greeter: Greeter
) -> None:
    node = stage.nodes[0]
    jump = {"jump_host": f"ops@127.0.0.1:{greeter.port}"}
    page = f"/nodes/{node.pk}/edit/"

    wrong = root.post(page, edit_form(node, **jump, jump_fingerprint="SHA256:x"))
    node.refresh_from_db()
    assert (wrong.status_code, node.jump_host) == (422, {})
    assert "has the fingerprint" in wrong.content.decode()

    root.post(page, edit_form(node, **jump, jump_fingerprint=greeter.fingerprint))
    node.refresh_from_db()
    assert node.jump_host == {
        "host": "127.0.0.1", "port": greeter.port, "user": "ops",
        "host_key": greeter.key, "host_key_fingerprint": greeter.fingerprint,
    }  # fmt: skip
    assert jump["jump_host"] in read(root, f"/nodes/{node.pk}/")

    root.post(page, edit_form(node, user="late", **jump))
    node.refresh_from_db()
    assert (node.user, node.jump_host["user"]) == ("late", "ops")
    root.post(page, edit_form(node))
    node.refresh_from_db()
    assert node.jump_host == {}


def test_the_key_of_a_jump_host_is_confirmed_with_that_of_the_node(
    root: Client, greeter: Greeter
) -> None:
    jump = {"jump_host": f"ops@127.0.0.1:{greeter.port}"}
    confirmed = {"host_key": greeter.key, "fingerprint": greeter.fingerprint, "confirm": "yes"}

    html = root.post("/nodes/new/", form(greeter, **jump, **confirmed)).content.decode()
    assert "public key line" in html
    assert not Node.objects.filter(name="gpu-9").exists()

    root.post("/nodes/new/", form(greeter, **jump, **confirmed, jump_key=greeter.key))
    node = Node.objects.get(name="gpu-9")
    assert node.jump_host["host_key_fingerprint"] == greeter.fingerprint


def test_failures_by_device_are_shown_to_admins_only(
    root: Client, client: Client, stage: Stage
) -> None:
    member = Member.objects.filter(attempt__job=stage.running).first()
    assert member is not None
    now = timezone.now()
    Member.objects.filter(pk=member.pk).update(exited_at=now, failure_class="user")
    page = f"/nodes/{member.node_id}/"

    said = words_of(read(root, page))
    assert f"Device {member.devices[0]}: 1 of the last 1 job failed here, of 1 tenant." in said
    assert "All nodes, last 30 days: 1 of 1 job failed." in said
    assert "may be faulty" not in said
    assert "Failures by device" not in read(sign_in(client, "alice"), page)


def test_of_two_editors_the_second_gets_an_error(root: Client, stage: Stage) -> None:
    node = stage.nodes[0]
    sent = edit_form(node, user="late")
    root.post(f"/nodes/{node.pk}/edit/", edit_form(node, user="early"))

    html = root.post(f"/nodes/{node.pk}/edit/", sent).content.decode()

    node.refresh_from_db()
    assert node.user == "early"
    assert "Another person changed this node meanwhile" in html
    assert 'value="early"' in html


def test_a_node_with_jobs_or_promises_is_not_removed(root: Client, stage: Stage) -> None:
    busy = root.post(f"/nodes/{stage.nodes[0].pk}/remove/", follow=True).content.decode()

    assert "still on node-1" in busy
    assert Node.objects.filter(name="node-1", removed_at=None).exists()


def test_the_audit_of_an_act_keeps_no_markup_of_ours(root: Client, stage: Stage) -> None:
    root.post(f"/nodes/{stage.nodes[0].pk}/cordon/", {"reason": "<b>bold</b>"})

    entry = AuditEntry.objects.unscoped().filter(action="node.cordon").get()

    assert entry.message == "<b>bold</b>"
    assert "held" in json.dumps(entry.after)


def test_the_page_reports_how_a_node_isolates_jobs_and_an_admin_resets_it(
    root: Client, stage: Stage
) -> None:
    node = stage.nodes[2]
    vision = Tenant.objects.unscoped().get(name="vision")
    Node.objects.filter(pk=node.pk).update(
        isolation_level="none",
        isolation=[{"level": "namespace", "available": False, "cause": "userns-disabled"}],
        visible_paths=[{"path": "/data", "writable": True, "tenants": [vision.pk]}],
        dedicated_to=[vision.pk],
    )
    NodeTenancy.objects.create(node=node, tenant=vision, taken_at=timezone.now())

    shown = read(root, f"/nodes/{node.pk}/")
    root.post(f"/nodes/{node.pk}/reset-isolation/", {"reason": "reinstalled"})

    said = words_of(shown)
    assert "Assigned to vision until an admin resets it" in said
    assert "userns-disabled" in said
    assert "Set the sysctl kernel.unprivileged_userns_clone=1." in said
    assert "/data (read and write) (vision)" in said
    assert "Dedicated to vision" in said
    assert "reset-isolation" in buttons(shown)
    assert NodeTenancy.objects.unscoped().get().reset_reason == "reinstalled"


def test_a_node_is_dedicated_and_its_paths_are_set_in_the_form(root: Client, stage: Stage) -> None:
    node = stage.nodes[0]
    values = {
        "host": node.host,
        "port": node.port,
        "user": node.user,
        "labels": "",
        "version": node.version,
        "dedicated_to": "vision",
        "visible_paths": "/data/sets\n/scratch:rw @vision\n/saved:checkpoints",
    }

    wrong = root.post(f"/nodes/{node.pk}/edit/", {**values, "visible_paths": "/etc/ssh"})
    root.post(f"/nodes/{node.pk}/edit/", values)

    assert "must not contain keys or passwords of the system" in wrong.content.decode()
    node.refresh_from_db()
    vision = Tenant.objects.unscoped().get(name="vision").pk
    assert node.dedicated_to == [vision]
    assert node.visible_paths == [
        {"path": "/data/sets", "writable": False, "checkpoints": False, "tenants": []},
        {"path": "/scratch", "writable": True, "checkpoints": False, "tenants": [vision]},
        {"path": "/saved", "writable": False, "checkpoints": True, "tenants": []},
    ]
    page = read(root, f"/nodes/{node.pk}/edit/")
    assert "/data/sets\n/scratch:rw @vision\n/saved:checkpoints" in page
    assert "/saved (checkpoints)" in words_of(read(root, f"/nodes/{node.pk}/"))


def test_the_network_of_jobs_is_set_in_the_form_and_shown_with_what_the_node_can_do(
    root: Client, stage: Stage
) -> None:
    node = stage.nodes[0]
    missing = {"network": "connected", "available": False, "cause": "no-slirp4netns"}
    probed = {
        "levels": [],
        "cpus": 4,
        "memory_bytes": 1 << 30,
        "isolation": [{"level": "none", "available": True}, {"level": "user", "available": True}],
        "networks": [{"network": "isolated", "available": True}, missing],
        "job_network": "shared",
    }
    Node.objects.filter(pk=node.pk).update(inventory=probed, plain_network="shared")
    values = {
        "host": node.host,
        "port": node.port,
        "user": node.user,
        "labels": "",
        "version": node.version,
        "job_network": "isolated",
    }

    before = words_of(read(root, f"/nodes/{node.pk}/"))
    assert 'name="job_network"' in root.get(f"/nodes/{node.pk}/edit/").content.decode()
    wrong = root.post(f"/nodes/{node.pk}/edit/", {**values, "job_network": "bridge"})
    root.post(f"/nodes/{node.pk}/edit/", values)
    after = words_of(read(root, f"/nodes/{node.pk}/"))

    assert "shared . Setting: shared (set in the file of the node)" in before
    assert "Install the package slirp4netns on the node." in before
    assert "no-slirp4netns" in before
    assert wrong.status_code == 422
    assert "isolated . Setting: isolated" in after
    node.refresh_from_db()
    assert (node.job_network, node.plain_network) == ("isolated", "isolated")
    changed = AuditEntry.objects.unscoped().filter(action="node.update").latest("id")
    assert changed.after["job_network"] == "isolated"


def test_the_interface_of_gangs_is_set_on_the_page_of_the_node(root: Client) -> None:
    node = Node.objects.get(name="node-1")
    interfaces = [{"name": "ib0", "address": "10.9.0.1/24", "speed": 200_000}]
    found = {"interfaces": interfaces, "infiniband": ["mlx5_0"]}
    Node.objects.filter(pk=node.pk).update(inventory=found)
    values = {"host": node.host, "port": node.port, "user": node.user, "version": node.version}

    before = words_of(read(root, f"/nodes/{node.pk}/"))
    wrong = root.post(f"/nodes/{node.pk}/edit/", {**values, "data_interface": "a b"})
    root.post(f"/nodes/{node.pk}/edit/", {**values, "data_interface": "ib0"})

    assert "ib0 10.9.0.1/24 (200000 Mbit/s)" in before
    assert "InfiniBand: mlx5_0" in before
    assert "the fastest interface that the nodes of a gang share" in before
    assert wrong.status_code == 422
    assert "such as ib0" in wrong.content.decode()
    node.refresh_from_db()
    assert node.data_interface == "ib0"


def test_the_minimum_level_of_the_cluster_is_set_on_the_list(root: Client, stage: Stage) -> None:
    root.post("/nodes/isolation/", {"least_isolation": "namespace"})

    shown = read(root, "/nodes/")

    assert '<option value="namespace" selected translate="no">' in shown


def test_a_device_is_quarantined_on_its_page_and_returned(root: Client, stage: Stage) -> None:
    node = Node.objects.get(name="node-1")
    address = f"/nodes/{node.pk}/devices/"

    assert address in read(root, f"/nodes/{node.pk}/")
    refused = root.post(address, {"device": "3", "reason": ""})
    root.post(address, {"device": "3", "reason": "loud fan", "hours": "2"})
    device = node.devices.get(index=3)
    shown = words_of(read(root, address))

    assert "Select a device, and write a reason." in refused.content.decode()
    assert (device.healthy, device.health_reason) == (False, "loud fan")
    assert device.disabled_until is not None
    assert "quarantined loud fan until" in shown
    root.post(address, {"device": "3", "release": "yes"})
    assert node.devices.filter(index=3, healthy=True, disabled_until=None).exists()


def test_a_device_is_tested_on_its_page(root: Client, stage: Stage) -> None:
    node = Node.objects.get(name="node-2")
    address = f"/nodes/{node.pk}/devices/"
    root.post(address, {"device": "7", "reason": "loud fan"})

    refused = root.post(address, {"device": "7", "check": "yes"}, follow=True)
    Node.objects.filter(pk=node.pk).update(
        inventory={"reader": "nvml"}, isolation_level="user", contact="ready", state="ready"
    )
    node.devices.update(is_gpu=True)
    done = root.post(address, {"device": "7", "check": "yes"}, follow=True)

    assert "Canary jobs test NVIDIA GPUs" in words_of(refused.content.decode())
    shown = words_of(done.content.decode())
    assert "Canary job started on device 7." in shown
    assert "Canary job is running" in shown
    run = CanaryRun.objects.get(device__node=node, device__index=7)
    assert f"job {run.job_id}" in shown


def test_others_quarantine_no_device(stage: Stage, client: Client) -> None:
    node = Node.objects.get(name="node-1")
    alice = sign_in(client, "alice")

    answer = alice.post(f"/nodes/{node.pk}/devices/", {"device": "3", "reason": "mine"})

    assert answer.status_code == 403
    assert node.devices.get(index=3).healthy
