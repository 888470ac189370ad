"""``/api/v1/nodes/``: adding after looking at the key, holding back, taking out."""

import asyncio
import dataclasses
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import asyncssh
import pytest
from django.conf import settings
from django.utils import timezone

from portal.api.nodes import NodeIn
from scheduling.clusters.models import Device, Node, NodeTenancy, VcQuota
from scheduling.runs.models import Lease, Member
from tenants.keyring import SSH_KEY_FILE, SshKey, forget_keys
from tenants.models import AuditEntry, Tenant
from tenants.roles import Scope
from tests.factories.cluster import make_job
from tests.factories.scheduling import end, start, submit

URL = "/api/v1/nodes/"


class _Open(asyncssh.SSHServer):
    """Lets anybody in, and forwards connections."""

    def begin_auth(self, username: str) -> bool:
        return False

    def connection_requested(self, *_args: object) -> bool:
        return True


@contextmanager
def ssh_server(factory: type[asyncssh.SSHServer] | None = None) -> Iterator[tuple[int, str]]:
    """A real SSH server on loopback: its port and the fingerprint of its key."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    started, ports = threading.Event(), []
    ended = asyncio.Event()

    async def serve() -> None:
        server = await asyncssh.listen(
            "127.0.0.1", 0, server_host_keys=[key], server_factory=factory
        )
        ports.append(server.get_port())
        loops.append(asyncio.get_running_loop())
        started.set()
        await ended.wait()
        server.close()
        await server.wait_closed()

    loops: list[asyncio.AbstractEventLoop] = []
    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert started.wait(60)
    try:
        yield ports[0], key.get_fingerprint("sha256")
    finally:
        loops[0].call_soon_threadsafe(ended.set)
        thread.join(60)


@pytest.fixture(scope="module")
def machine() -> Iterator[dict[str, Any]]:
    with ssh_server() as (port, fingerprint):
        yield {
            "name": "new-1", "host": "127.0.0.1", "port": port, "user": "tessera",
            "labels": {"rack": "r1"}, "host_key_fingerprint": fingerprint,
        }  # fmt: skip


def without(machine: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in machine.items() if name not in names}


def test_without_a_fingerprint_nothing_is_stored_and_the_one_seen_comes_back(
    api: Any, machine: dict[str, Any], problem: Callable[..., Any]
) -> None:
    response = api("root").post(URL, without(machine, "host_key_fingerprint"))

    body = problem(response, 409)
    assert body["code"] == "host-key-unknown"
    assert body["errors"][0]["field"] == "host_key_fingerprint"
    assert body["errors"][0]["value"] == machine["host_key_fingerprint"]
    assert not Node.objects.filter(name="new-1").exists()


def test_with_the_fingerprint_that_is_seen_the_node_is_added(
    api: Any, machine: dict[str, Any]
) -> None:
    response = api("root").post(URL, machine)

    body = response.json()
    assert response.status_code == 201, body
    assert (body["name"], body["state"], body["labels"]) == ("new-1", "down", {"rack": "r1"})
    assert body["host_key_fingerprint"] == machine["host_key_fingerprint"]
    assert response.headers["ETag"] == f'"{body["version"]}"'
    assert Node.objects.get(name="new-1").host_key.startswith("ssh-ed25519 ")


def test_another_fingerprint_is_a_mismatch_and_nothing_is_stored(
    api: Any, machine: dict[str, Any], problem: Callable[..., Any]
) -> None:
    response = api("root").post(URL, {**machine, "host_key_fingerprint": "SHA256:" + "A" * 43})

    assert problem(response, 409)["code"] == "host-key-mismatch"
    assert not Node.objects.filter(name="new-1").exists()


def test_a_machine_that_does_not_answer_is_said_so(
    api: Any, machine: dict[str, Any], problem: Callable[..., Any]
) -> None:
    with ssh_server() as (port, _):
        pass

    body = problem(api("root").post(URL, {**machine, "port": port}), 409)

    assert body["code"] == "node-unreachable"
    (fault,) = body["errors"]
    assert fault["message"] == "No SSH server responds there: connection refused."
    assert fault["value"].endswith(f":{port}")


@pytest.fixture
def portal_key() -> Iterator[None]:
    """The key with which the portal signs in."""
    path = settings.TESSERA.data_dir / SSH_KEY_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(SshKey.generate().private)
    forget_keys()
    yield
    path.unlink()


@pytest.mark.usefixtures("portal_key")
def test_keys_of_the_jump_host_and_of_the_node_behind_it_are_confirmed(
    api: Any, machine: dict[str, Any], problem: Callable[..., Any]
) -> None:
    with ssh_server(_Open) as (port, fingerprint):
        wanted = {**machine, "jump_host": f"tessera@127.0.0.1:{port}"}
        asked = problem(api("root").post(URL, wanted), 409)
        assert asked["errors"][0]["field"] == "jump_host_key_fingerprint"
        assert asked["errors"][0]["value"] == fingerprint

        wanted["jump_host_key_fingerprint"] = fingerprint
        behind = problem(api("root").post(URL, without(wanted, "host_key_fingerprint")), 409)
        assert behind["errors"][0]["field"] == "host_key_fingerprint"
        assert behind["errors"][0]["value"] == machine["host_key_fingerprint"]

        body = api("root").post(URL, wanted).json()
        node = Node.objects.get(name="new-1")
        assert (body["jump_host"], body["jump_host_key_fingerprint"]) == (
            f"tessera@127.0.0.1:{port}",
            fingerprint,
        )
        assert node.jump_host["host_key"].startswith("ssh-ed25519 ")
        entry = AuditEntry.objects.unscoped().get(action="node.add")
        assert "host_key" not in entry.after["jump_host"]
        other = {"jump_host": wanted["jump_host"], "jump_host_key_fingerprint": "SHA256:x"}
        assert problem(api("root").patch(f"{URL}{node.pk}/", other), 409)["code"] == (
            "host-key-mismatch"
        )

    assert api("root").patch(f"{URL}{node.pk}/", {"jump_host": ""}).status_code == 200
    node.refresh_from_db()
    assert node.jump_host == {}


# what is sent, the field that is named
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "name"),
    ({"name": "a b"}, "name"),
    ({"name": "$(reboot)"}, "name"),
    ({"name": 5}, "name"),
    ({"host": ""}, "host"),
    ({"host": "-oProxyCommand=x"}, "host"),
    ({"host": "a b"}, "host"),
    *(
        ({"jump_host": text}, "jump_host")
        for text in ("bastion", "a b@c", "-x@h", "u@-o", "u@h:0", "u@h:70000", 5)
    ),
    ({"jump_host_key_fingerprint": 5}, "jump_host_key_fingerprint"),
    ({"port": 0}, "port"),
    ({"port": 65536}, "port"),
    ({"port": "22"}, "port"),
    ({"user": ""}, "user"),
    ({"user": "-x"}, "user"),
    ({"user": "a;b"}, "user"),
    ({"labels": {"rack": 5}}, "labels.rack"),
    ({"labels": []}, "labels"),
    ({"host_key_fingerprint": 5}, "host_key_fingerprint"),
    ({"host_key_fingerprint": []}, "host_key_fingerprint"),
    ({"name": "n" * 64}, "name"),
    ({"host": "h" * 256}, "host"),
    ({"host": 7}, "host"),
    ({"user": None}, "user"),
    ({"user": "u" * 65}, "user"),
    ({"port": True}, "port"),
    ({"labels": {"rack": "r" * 256}}, "labels.rack"),
    ({"labels": {"": "x"}}, "labels."),
    ({"password": "x"}, "password"),
]


def test_the_table_of_refusals_covers_every_field_of_a_node() -> None:
    covered = {field.partition(".")[0] for _, field in REFUSED}

    assert {each.name for each in dataclasses.fields(NodeIn)} <= covered


@pytest.mark.parametrize(("change", "field"), REFUSED)
def test_what_is_wrong_with_a_node_is_named_before_anybody_is_called(
    api: Any, problem: Callable[..., Any], change: dict[str, Any], field: str
) -> None:
    body = {"name": "new-1", "host": "192.0.2.1", "user": "tessera", **change}

    faults = problem(api("root").post(URL, body), 400)["errors"]

    assert field in [fault["field"] for fault in faults]
    assert all(fault["remedy"] for fault in faults)
    assert Node.objects.count() == 3


def test_a_name_or_an_address_that_is_taken_is_refused(
    api: Any, machine: dict[str, Any], problem: Callable[..., Any]
) -> None:
    api("root").post(URL, machine)

    assert problem(api("root").post(URL, machine), 409)["code"] == "duplicate"
    other = {**machine, "name": "new-2"}
    assert problem(api("root").post(URL, other), 409)["errors"][0]["field"] == "host"


def test_only_cluster_admins_handle_nodes(
    api: Any, machine: dict[str, Any], problem: Callable[..., Any]
) -> None:
    problem(api("lena").post(URL, machine), 403)
    problem(api("root", Scope.JOBS_READ).post(URL, machine), 403)
    node = Node.objects.all()[0]
    for verb in ("cordon", "uncordon", "drain", "declare-dead"):
        problem(api("lena").post(f"{URL}{node.pk}/{verb}/", {"reason": "x"}), 403)
    problem(api("lena").patch(f"{URL}{node.pk}/", {"labels": {}}), 403)
    problem(api("lena").delete(f"{URL}{node.pk}/"), 403)


def test_everybody_sees_nodes_and_only_admins_their_addresses(api: Any) -> None:
    seen = api("alice").get(URL).json()["results"]
    managed = api("root").get(URL).json()["results"]

    assert [row["name"] for row in seen] == ["node-1", "node-2", "node-3"]
    assert {row["host"] for row in seen} == {""}
    assert managed[0]["host"] == "127.0.0.1"


def test_what_the_line_said_is_for_admins_and_others_read_a_neutral_sentence(api: Any) -> None:
    said = "10.1.2.3:22: Connection refused (/srv/keys/id)"
    silent = Node.objects.get(name="node-1")
    Node.objects.filter(pk=silent.pk).update(
        state="down", contact="down", state_reason=said, contact_reason=said
    )
    Node.objects.filter(name="node-2").update(
        state="cordoned", held="cordoned", state_reason="new driver", held_reason="new driver"
    )

    for url in (URL, f"{URL}{silent.pk}/", "/api/v1/cluster/"):
        seen, managed = api("lena").get(url), api("root").get(url)

        assert "10.1.2.3" not in seen.content.decode()
        assert "the node does not respond" in seen.content.decode()
        assert said in managed.content.decode()
    held = {row["name"]: row["state_reason"] for row in api("alice").get(URL).json()["results"]}
    assert held["node-2"] == "new driver"


def test_nodes_come_page_by_page_and_by_state(api: Any, problem: Callable[..., Any]) -> None:
    Node.objects.filter(name="node-2").update(state="down")

    first = api("alice").get(URL, {"limit": 2, "fields": "name"}).json()
    rest = api("alice").get(URL, {"limit": 2, "cursor": first["next_cursor"]}).json()
    down = api("alice").get(URL, {"state": "down,suspect"}).json()

    assert first["results"] == [{"name": "node-1"}, {"name": "node-2"}]
    assert [row["name"] for row in rest["results"]] == ["node-3"]
    assert [row["name"] for row in down["results"]] == ["node-2"]
    assert problem(api("alice").get(URL, {"state": "lost"}), 400)["errors"][0]["value"] == "lost"


def test_a_node_is_shown_with_devices_and_cells(api: Any, problem: Callable[..., Any]) -> None:
    node = Node.objects.get(name="node-1")

    body = api("alice").get(f"{URL}{node.pk}/").json()

    assert [device["index"] for device in body["device_list"]] == list(range(8))
    assert body["cell"]["level"] == "node"
    assert body["inventory"] == {}
    problem(api("alice").get(f"{URL}999/"), 404)


def test_a_node_is_held_back_with_a_reason_and_used_again(api: Any) -> None:
    node = Node.objects.get(name="node-1")
    client = api("root")

    cordoned = client.post(f"{URL}{node.pk}/cordon/", {"reason": "new fans"}).json()
    used = client.post(f"{URL}{node.pk}/uncordon/", {}).json()

    assert (cordoned["state"], cordoned["held_reason"]) == ("cordoned", "new fans")
    assert used["state"] == "ready"
    actions = AuditEntry.objects.unscoped().filter(object_type="node").order_by("pk")
    assert [entry.action for entry in actions] == ["node.cordon", "node.uncordon"]


def test_an_empty_node_drains_at_once(api: Any) -> None:
    node = Node.objects.get(name="node-1")

    body = api("root").post(f"{URL}{node.pk}/drain/", {"reason": "gone"}).json()

    assert body["state"] == "cordoned"


@pytest.mark.parametrize("verb", ["cordon", "drain", "declare-dead"])
@pytest.mark.parametrize("reason", ["", "  ", "x" * 501, 5])
def test_a_hold_needs_a_reason(
    api: Any, problem: Callable[..., Any], verb: str, reason: object
) -> None:
    node = Node.objects.get(name="node-1")

    body = problem(api("root").post(f"{URL}{node.pk}/{verb}/", {"reason": reason}), 400)

    assert body["errors"][0]["field"] == "reason"


def test_a_node_that_answers_is_not_dead(api: Any, problem: Callable[..., Any]) -> None:
    node = Node.objects.get(name="node-1")

    problem(api("root").post(f"{URL}{node.pk}/declare-dead/", {"reason": "silent"}), 409)
    Node.objects.filter(pk=node.pk).update(contact="down", state="down")

    response = api("root").post(f"{URL}{node.pk}/declare-dead/", {"reason": "silent"})
    assert response.json()["declared_dead_at"]


def test_of_two_admins_who_edit_labels_the_second_gets_an_error(
    api: Any, problem: Callable[..., Any]
) -> None:
    node = Node.objects.get(name="node-1")
    tag = api("root").get(f"{URL}{node.pk}/").headers["ETag"]

    first = api("root").patch(f"{URL}{node.pk}/", {"labels": {"rack": "a"}}, HTTP_IF_MATCH=tag)
    second = api("root").patch(f"{URL}{node.pk}/", {"labels": {"rack": "b"}}, HTTP_IF_MATCH=tag)

    assert first.status_code == 200
    assert first.headers["ETag"] != tag
    assert problem(second, 412)["code"] == "stale-edit"
    node.refresh_from_db()
    assert node.labels == {"rack": "a"}


def test_a_version_that_is_none_is_refused(api: Any, problem: Callable[..., Any]) -> None:
    node = Node.objects.get(name="node-1")

    response = api("root").patch(f"{URL}{node.pk}/", {"labels": {}}, HTTP_IF_MATCH='"x"')

    assert problem(response, 400)["errors"][0]["field"] == "If-Match"


@pytest.mark.parametrize("body", [{}, {"name": "other"}, {"labels": None}])
def test_only_labels_can_be_changed(
    api: Any, problem: Callable[..., Any], body: dict[str, Any]
) -> None:
    node = Node.objects.get(name="node-1")

    problem(api("root").patch(f"{URL}{node.pk}/", body), 400)


def test_a_node_whose_cells_are_promised_stays_and_a_spare_one_goes(
    api: Any, problem: Callable[..., Any]
) -> None:
    VcQuota.objects.update(count=1)
    first, second = Node.objects.order_by("pk")[:2]

    assert api("root").delete(f"{URL}{first.pk}/").status_code == 204

    problem(api("root").get(f"{URL}{first.pk}/"), 404)
    assert problem(api("root").delete(f"{URL}{second.pk}/"), 409)["code"] == "does-not-fit"


def test_taking_a_node_out_is_tried_first_and_reports_what_it_would_cost(api: Any) -> None:
    VcQuota.objects.update(count=1)
    first, second = Node.objects.order_by("pk")[:2]
    nodes = Node.objects.count()

    spare = api("root").delete(f"{URL}{first.pk}/?dry_run=1")
    VcQuota.objects.update(count=2)
    promised = api("root").delete(f"{URL}{second.pk}/?dry_run=1")

    assert spare.status_code == promised.status_code == 200
    assert spare.json()["nodes_removed"] == [first.name]
    assert (spare.json()["fits"], spare.json()["become_opportunistic"]) == (True, [])
    assert (promised.json()["fits"], len(promised.json()["witnesses"])) == (False, 1)
    assert Node.objects.filter(removed_at=None).count() == nodes
    assert not AuditEntry.objects.unscoped().filter(action="node.remove").exists()


def test_a_trial_of_taking_a_node_out_is_for_cluster_admins_with_the_version_that_is_in_force(
    api: Any, problem: Callable[..., Any]
) -> None:
    node = Node.objects.get(name="node-1")

    problem(api("lena").delete(f"{URL}{node.pk}/?dry_run=1"), 403)
    problem(api("root").delete(f"{URL}999999/?dry_run=1"), 404)
    answer = api("root").delete(f"{URL}{node.pk}/?dry_run=1", headers={"If-Match": '"77"'})

    assert problem(answer, 412)["code"] == "stale-edit"


def test_the_list_takes_a_fixed_number_of_queries(
    api: Any, django_assert_num_queries: Any
) -> None:
    for number in range(5):
        make_job("alice", name=f"job-{number}")
    client = api("alice")

    with django_assert_num_queries(12):
        client.get(URL)


def test_isolation_owner_and_dedication_are_shown_and_set(
    api: Any, problem: Callable[..., Any]
) -> None:
    node = Node.objects.order_by("id")[0]
    vision = Tenant.objects.unscoped().get(name="vision")
    Node.objects.filter(pk=node.pk).update(
        isolation_level="none",
        isolation=[{"level": "user", "available": False, "cause": "no-root-and-no-sudo-rule"}],
    )
    NodeTenancy.objects.create(node=node, tenant=vision, taken_at=node.created_at)
    changes = {
        "dedicated_to": ["vision"],
        "visible_paths": [
            {"path": "/data", "writable": True, "checkpoints": False, "tenants": ["vision"]},
            {"path": "/saved", "writable": False, "checkpoints": True, "tenants": ["vision"]},
        ],
    }

    answer = api("root").patch(f"{URL}{node.pk}/", changes).json()["isolation"]

    assert (answer["level"], answer["owner"]) == ("none", "vision")
    assert answer["levels"][0]["cause"] == "no-root-and-no-sudo-rule"
    assert answer["levels"][0]["remedy"].startswith("Connect as root")
    assert answer["dedicated_to"] == ["vision"]
    assert answer["visible_paths"] == changes["visible_paths"]
    other = api("bob").get(f"{URL}{node.pk}/").json()["isolation"]
    assert other["owner"] == "another tenant"
    assert other["visible_paths"] == []
    listed = api("bob").get(URL).json()["results"]
    assert {row["isolation"]["owner"] for row in listed} == {"another tenant", ""}


def test_the_network_of_jobs_is_shown_and_set(api: Any, problem: Callable[..., Any]) -> None:
    node = Node.objects.order_by("id")[0]
    probed = {
        "levels": [],
        "cpus": 4,
        "memory_bytes": 1 << 30,
        "isolation": [{"level": "none", "available": True}, {"level": "user", "available": True}],
        "networks": [
            {"network": "isolated", "available": True},
            {
                "network": "connected",
                "available": False,
                "cause": "no-tun-device",
                "detail": "/dev/net/tun: Permission denied",
            },
        ],
    }
    Node.objects.filter(pk=node.pk).update(inventory=probed)
    url = f"{URL}{node.pk}/"

    answers = [
        api("root").patch(url, {"job_network": setting}).json()["isolation"]
        for setting in ("isolated", "shared", "auto", "")
    ]
    body = problem(api("root").patch(url, {"job_network": "bridge"}), 400)

    assert [(one["job_network"], one["plain_network"]) for one in answers] == [
        ("isolated", "isolated"),
        ("shared", "shared"),
        ("auto", "shared"),
        ("", "shared"),
    ]
    (_, connected) = answers[0]["networks"]
    assert (connected["cause"], connected["detail"]) == (
        "no-tun-device",
        "/dev/net/tun: Permission denied",
    )
    assert "chmod 666 /dev/net/tun" in connected["remedy"]
    assert body["errors"][0]["field"] == "job_network"
    assert api("bob").get(url).json()["isolation"]["networks"][1]["detail"] == ""


@pytest.mark.parametrize(
    "path", ["/", "relative", "/a/../b", "/proc/1", "/root", "/home/x/.tessera/runs", "/a//b"]
)
def test_a_path_that_jobs_must_not_see_is_refused(
    api: Any, problem: Callable[..., Any], path: object
) -> None:
    node = Node.objects.order_by("id")[0]

    body = problem(api("root").patch(f"{URL}{node.pk}/", {"visible_paths": [{"path": path}]}), 400)

    assert body["errors"][0]["field"] == "visible_paths[0].path"


def test_a_node_is_reset_by_an_admin_once_nothing_runs_there(
    api: Any, problem: Callable[..., Any]
) -> None:
    node = Node.objects.order_by("id")[0]
    vision = Tenant.objects.unscoped().get(name="vision")
    NodeTenancy.objects.create(node=node, tenant=vision, taken_at=node.created_at)
    url = f"{URL}{node.pk}/reset-isolation/"

    problem(api("alice").post(url, {"reason": "x"}), 403)
    problem(api("root").post(url, {}), 400)
    answer = api("root").post(url, {"reason": "reinstalled"})

    assert answer.json()["isolation"]["owner"] == ""
    problem(api("root").post(url, {"reason": "again"}), 409)
    entry = AuditEntry.objects.unscoped().get(action="node.reset_isolation")
    assert (entry.message, entry.before["tenant"]) == ("reinstalled", "vision")


def test_the_minimum_isolation_level_is_read_by_all_and_set_by_admins(
    api: Any, problem: Callable[..., Any]
) -> None:
    url = "/api/v1/cluster/rules/"

    before = api("alice").get(url).json()
    problem(api("alice").patch(url, {"least_isolation": "user"}), 403)
    problem(api("root").patch(url, {"least_isolation": "strong"}), 400)
    refused = problem(api("root").patch(url, {"least_isolation": "user"}), 409)
    Node.objects.update(isolation_level="user")
    after = api("root").patch(url, {"least_isolation": "user"})

    assert (before["least_isolation"], before["version"]) == ("none", 0)
    assert "has no room" in str(refused)
    assert (after.json()["least_isolation"], after.json()["version"]) == ("user", 1)
    assert after.headers["ETag"] == '"1"'


def test_admins_set_the_actions_for_conditions_of_gpus(
    api: Any, problem: Callable[..., Any]
) -> None:
    url = "/api/v1/cluster/rules/"
    wanted = {"condition_actions": {"ecc-uncorrectable": "note"}}

    before = api("alice").get(url).json()["condition_actions"]
    problem(api("alice").patch(url, wanted, format="json"), 403)
    refused = problem(
        api("root").patch(url, {"condition_actions": {"lost": "ignore"}}, format="json"), 400
    )
    after = api("root").patch(url, wanted, format="json").json()

    assert (before["ecc-uncorrectable"], before["fabric-not-ready"]) == ("quarantine", "cordon")
    assert refused["errors"][0]["field"] == "condition_actions.lost"
    assert after["condition_actions"] == {**before, "ecc-uncorrectable": "note"}


def test_a_node_shows_its_gpus_to_managers_and_their_conditions_to_all(api: Any) -> None:
    node = Node.objects.order_by("name")[0]
    Device.objects.filter(node=node, index=2).update(
        uuid="GPU-b", is_gpu=True, pci_address="0000:3b:00.0", serial="17", driver_index=1
    )
    condition = {"code": "xid-application", "detail": "Xid 31: name=train", "uuid": "GPU-b"}
    Node.objects.filter(pk=node.pk).update(inventory={"conditions": [condition], "cuda": "12.4"})

    full, little = (api(user).get(f"{URL}{node.pk}/").json() for user in ("root", "alice"))

    assert full["gpus"] == [
        {
            "device": 2,
            "uuid": "GPU-b",
            "model": "",
            "serial": "17",
            "pci_address": "0000:3b:00.0",
            "driver_index": 1,
        }
    ]
    assert (full["cuda"], little["gpus"]) == ("12.4", [])
    (seen,) = full["conditions"]
    assert (seen["device"], seen["code"], seen["action"]) == (2, "xid-application", "note")
    assert seen["detail"] == "Xid 31: name=train"
    assert [one["detail"] for one in little["conditions"]] == [""]


def test_the_interface_of_gangs_is_set_and_validated(
    api: Any, problem: Callable[..., Any]
) -> None:
    url = f"{URL}{Node.objects.get(name='node-1').pk}/"

    changed = api("root").patch(url, {"data_interface": "ib0"}).json()
    body = problem(api("root").patch(url, {"data_interface": "ib0; reboot"}), 400)

    assert changed["data_interface"] == "ib0"
    assert body["errors"][0]["field"] == "data_interface"
    assert "such as ib0" in body["errors"][0]["remedy"]


def test_only_admins_read_the_key_that_nodes_authorize(
    api: Any, problem: Callable[..., Any]
) -> None:
    assert api("root").get(f"{URL}portal-key/").json().keys() == {"public_key"}
    problem(api("alice").get(f"{URL}portal-key/"), 403)


def test_a_device_is_quarantined_and_released(api: Any) -> None:
    node = Node.objects.get(name="node-1")
    wanted = {"device": 3, "reason": "loud fan", "hours": 2}
    root = api("root", Scope.NODES_ADMIN)

    held = root.post(f"{URL}{node.pk}/quarantine-device/", wanted, format="json").json()
    again = root.post(
        f"{URL}{node.pk}/quarantine-device/", {"device": 4, "reason": "hot"}, format="json"
    ).json()
    freed = root.post(f"{URL}{node.pk}/release-device/", {"device": 3}, format="json").json()

    assert [(one["device"], one["reason"]) for one in held["quarantined"]] == [(3, "loud fan")]
    assert held["quarantined"][0]["until"] is not None
    assert again["quarantined"][1] == {"device": 4, "reason": "hot", "until": None}
    assert [one["device"] for one in freed["quarantined"]] == [4]
    assert set(node.devices.filter(healthy=False).values_list("index", flat=True)) == {4}


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"device": 99}, "index"), ({"reason": ""}, "reason"), ({"hours": 0}, "hours")],
)
def test_a_quarantine_that_is_not_valid_is_refused(
    api: Any, problem: Callable[..., Any], changes: dict[str, Any], field: str
) -> None:
    node = Node.objects.get(name="node-1")
    wanted = {"device": 3, "reason": "loud fan", **changes}

    answer = api("root").post(f"{URL}{node.pk}/quarantine-device/", wanted, format="json")

    body = problem(answer, 404 if field == "index" else 400)
    assert [error["field"] for error in body["errors"]] == [field]


def test_only_node_managers_quarantine_devices(api: Any) -> None:
    node = Node.objects.get(name="node-1")
    wanted = {"device": 3, "reason": "mine"}

    answer = api("lena").post(f"{URL}{node.pk}/quarantine-device/", wanted, format="json")

    assert answer.status_code == 403
    assert not Device.objects.filter(healthy=False).exists()


def test_a_canary_job_tests_a_quarantined_device(api: Any, problem: Callable[..., Any]) -> None:
    node = Node.objects.get(name="node-1")
    inventory = {**node.inventory, "reader": "nvml"}
    Node.objects.filter(pk=node.pk).update(
        inventory=inventory, isolation_level="user", contact="ready", state="ready"
    )
    Device.objects.filter(node=node).update(is_gpu=True)
    root, url = api("root", Scope.NODES_ADMIN), f"{URL}{node.pk}/check-device/"

    in_service = root.post(url, {"device": 3}, format="json")
    root.post(f"{URL}{node.pk}/quarantine-device/", {"device": 3, "reason": "hot"}, format="json")
    checked = root.post(url, {"device": 3}, format="json").json()

    problem(in_service, 409)
    (run,) = checked["canaries"]
    assert (run["device"], run["requested_by"], run["result"]) == (3, "root", "")
    assert Lease.objects.get(job_id=run["job"]).device.index == 3
    problem(root.post(url, {"device": 3}, format="json"), 409)
    problem(root.post(url, {"device": 99}, format="json"), 404)
    # The job belongs to the system tenant, and only admins see it and the result.
    assert api("alice").get(f"/api/v1/jobs/{run['job']}/").status_code == 404
    assert api("alice").get(f"{URL}{node.pk}/").json()["canaries"] == []
    assert api("lena").post(url, {"device": 3}, format="json").status_code == 403


def test_node_managers_read_the_failures_by_device(api: Any) -> None:
    job = submit("alice")
    start(job)
    end(job, 1)
    lease = Lease.objects.select_related("device").get(job=job)
    Member.objects.filter(pk=lease.member_id).update(exited_at=timezone.now())
    url = f"{URL}{lease.device.node_id}/"

    failures = api("root").get(url).json()["failures"]

    assert (failures["all_jobs"], failures["all_failed"]) == (1, 1)
    (device,) = failures["devices"]
    assert device.items() >= {
        "device": lease.device.index, "jobs": 1, "failed": 1, "tenants": 1, "suspect": False,
    }.items()  # fmt: skip
    assert 0 < device["rate"] <= 1
    assert 0 <= device["probability"] <= 1
    assert api("alice").get(url).json()["failures"] is None
