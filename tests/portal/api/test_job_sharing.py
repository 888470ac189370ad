"""Device sharing in REST and on pages: who sees what, and who may switch it."""

from collections.abc import Callable
from typing import Any

import pytest

from scheduling.clusters.models import ClusterRules, Device, VirtualCluster
from scheduling.enums import LeaseKind
from scheduling.jobs.models import Job
from scheduling.runs.models import Lease, Member, SharedDevice, SharedMinute
from tenants.clock import database_now
from tests.factories.cluster import NOW, job_document, make_job
from tests.factories.running import put_into, run_attempt

RULES = "/api/v1/cluster/rules/"
GUEST: dict[str, Any] = {"class": "opportunistic", "sharing": {"allowed": True, "memory": "1GiB"}}


@pytest.fixture
def pair(api: Any) -> tuple[Job, Job]:
    """Alice's job on a device, and bob's job as its guest."""
    ClusterRules.objects.create(id=1, sharing=True)
    holder = make_job(sharing={"guests": "any"})
    guest = make_job("bob", job_document(virtual_cluster="language-a", **GUEST))
    node = Device.objects.order_by("pk")[0].node
    for job in (holder, guest):
        put_into(job, "running", now=NOW)
    run_attempt(holder, node, now=NOW)
    member = Member.objects.get(attempt__job=holder)
    run_attempt(guest, node, now=NOW, devices=())
    mine = Member.objects.get(attempt__job=guest)
    Lease.objects.create(
        device=Device.objects.get(node=node, index=0),
        attempt=mine.attempt,
        member=mine,
        job=guest,
        kind=LeaseKind.GUEST,
        slot=1,
        beside=member,
        mode="slot",
        floor=1,
        most=2,
        taken_at=NOW,
    )
    return holder, guest


def test_holder_and_guest_see_the_device_and_no_job_of_another_tenant(
    api: Any, pair: tuple[Job, Job]
) -> None:
    holder, guest = pair

    mine = api("alice").get(f"/api/v1/jobs/{holder.pk}/sharing/").json()
    theirs = api("bob").get(f"/api/v1/jobs/{guest.pk}/sharing/").json()
    admins = api("root").get(f"/api/v1/jobs/{holder.pk}/sharing/").json()

    assert (mine["role"], mine["guests"], mine["slowdown_percent"]) == ("holder", "any", 5)
    (device,) = mine["devices"]
    assert (device["mode"], device["memory_limit"], device["loss"]) == ("slot", "enforced", None)
    (other,) = device["others"]
    assert (other["job_id"], other["name"], other["slot"]) == (None, "", 1)
    assert theirs["role"] == "guest"
    assert theirs["devices"][0]["others"][0]["job_id"] is None
    assert admins["devices"][0]["others"][0]["job_id"] == guest.pk


def test_a_job_of_another_tenant_has_no_sharing_to_see(
    api: Any, pair: tuple[Job, Job], problem: Callable[..., Any]
) -> None:
    problem(api("bob").get(f"/api/v1/jobs/{pair[0].pk}/sharing/"), 404)
    problem(api("bob").post(f"/api/v1/jobs/{pair[0].pk}/sharing/stop/"), 404)


def test_the_owner_stops_the_sharing_of_a_job(api: Any, pair: tuple[Job, Job]) -> None:
    holder, guest = pair

    answer = api("alice").post(f"/api/v1/jobs/{holder.pk}/sharing/stop/")

    assert answer.status_code == 200
    assert answer.json()["stopped_at"] is not None
    assert answer.json()["devices"][0]["others"][0]["leaving"]
    assert Job.objects.unscoped().get(pk=guest.pk).state == "preempting"


def test_a_viewer_of_the_tenant_may_not_stop_it(
    api: Any, pair: tuple[Job, Job], problem: Callable[..., Any]
) -> None:
    problem(api("vera").post(f"/api/v1/jobs/{pair[0].pk}/sharing/stop/"), 403)


def test_cluster_admins_turn_device_sharing_on_and_off(
    api: Any, pair: tuple[Job, Job], problem: Callable[..., Any]
) -> None:
    problem(api("lena").patch(RULES, {"sharing": False}, format="json"), 403)
    answer = api("root").patch(RULES, {"sharing": False}, format="json")

    assert answer.json()["sharing"] is False
    assert Job.objects.unscoped().get(pk=pair[1].pk).state == "preempting"


def test_a_virtual_cluster_has_its_consent_and_number_of_guests(
    api: Any, problem: Callable[..., Any]
) -> None:
    url = f"/api/v1/virtual-clusters/{VirtualCluster.objects.unscoped()[0].pk}/"

    before = api("root").get(url).json()
    after = api("root").patch(url, {"guests_default": "any", "max_guests": 3}, format="json")
    wrong = problem(
        api("root").patch(url, {"guests_default": "all", "max_guests": 4}, format="json"), 400
    )

    assert (before["guests_default"], before["max_guests"]) == ("none", 1)
    assert (after.json()["guests_default"], after.json()["max_guests"]) == ("any", 3)
    assert {fault["field"] for fault in wrong["errors"]} == {"guests_default", "max_guests"}


def test_the_page_of_a_job_shows_its_guests_and_the_button(
    api: Any, pair: tuple[Job, Job]
) -> None:
    holder, _ = pair
    alice = api("alice")

    page = alice.get(f"/jobs/{holder.pk}/").content.decode()
    panel = alice.get(f"/jobs/{holder.pk}/sharing/").content.decode()
    alice.post(f"/jobs/{holder.pk}/sharing/stop/")
    after = alice.get(f"/jobs/{holder.pk}/sharing/").content.decode()

    assert f'hx-get="/jobs/{holder.pk}/sharing/"' in page
    assert "another tenant" in panel
    assert "Stop sharing" in panel
    assert "stopped for this job" in after
    assert "Stop sharing" not in after


def report(holder: Job, **figures: Any) -> None:
    """Store a report of the coordinator of the shared device, and a minute of its history."""
    lease = Lease.objects.get(job=holder, device__index=0)
    values = {"loss": 0.061, "loss_low": 0.05, "loss_high": 0.07, "open": 0.4, **figures}
    guest = Lease.objects.get(kind=LeaseKind.GUEST)
    told = [{"job": guest.job_id, "frozen": False, "open": True}]
    at = {"at": database_now(), "holder": lease.member, "guests": told}
    SharedDevice.objects.create(device=lease.device, baseline=0.2, **at, **values)
    minute = {"job": holder, "place": 3, "minute": NOW, "guests": 1, "frozen": 0, "limit": 0.05}
    SharedMinute.objects.create(device=lease.device, **minute, **values)


def test_the_history_has_each_minute_of_the_holder_as_json_and_csv(
    api: Any, pair: tuple[Job, Job], problem: Callable[..., Any]
) -> None:
    holder, guest = pair
    report(holder)
    url = f"/api/v1/jobs/{holder.pk}/sharing/history/"

    found = api("alice").get(url).json()
    table = api("alice").get(url, {"format": "csv"}).content.decode().splitlines()

    (minute,) = found["minutes"]
    assert (minute["loss"], minute["guests"], minute["over_limit"]) == (0.061, 1, True)
    assert table[0].startswith("minute,devices,guests,frozen,loss")
    assert table[1].split(",")[1:5] == ["1", "1", "0", "0.061"]
    problem(api("bob").get(url), 404)
    assert api("bob").get(f"/api/v1/jobs/{guest.pk}/sharing/history/").json()["minutes"] == []


@pytest.mark.parametrize("viewer", ["alice", "bob", "vera", "lena", "root"])
def test_no_view_of_shared_devices_names_a_job_of_another_tenant(
    api: Any, pair: tuple[Job, Job], viewer: str
) -> None:
    holder, guest = pair
    Job.objects.unscoped().filter(pk=holder.pk).update(name="secret-holder")
    Job.objects.unscoped().filter(pk=guest.pk).update(name="secret-guest")
    report(holder)
    client = api(viewer)
    node = Lease.objects.get(kind=LeaseKind.GUEST).device.node_id
    addresses = [
        *(f"/api/v1/jobs/{job.pk}/sharing/" for job in pair),
        *(f"/api/v1/jobs/{job.pk}/sharing/history/" for job in pair),
        *(f"/jobs/{job.pk}/sharing/" for job in pair),
        *(f"/jobs/{job.pk}/sharing/loss.json" for job in pair),
        f"/api/v1/nodes/{node}/sharing/", "/api/v1/cluster/sharing/", "/api/v1/cluster/",
        f"/nodes/{node}/", "/cluster/", "/cluster/?view=table", "/nodes/", "/metrics",
    ]  # fmt: skip

    texts = {address: client.get(address) for address in addresses}

    of_vision = {"alice", "vera", "lena", "root"}
    hidden = [
        *([] if viewer in of_vision else ["secret-holder"]),
        *([] if viewer in {"bob", "root"} else ["secret-guest"]),
    ]
    for address, answer in texts.items():
        assert answer.status_code in {200, 302, 404}, address
        body = b"" if answer.streaming else answer.content
        assert not [name for name in hidden if name.encode() in body], address


@pytest.mark.parametrize("viewer", ["alice", "bob", "vera", "lena"])
def test_only_cluster_admins_limit_the_guests_of_nodes_and_devices(
    api: Any, pair: tuple[Job, Job], problem: Callable[..., Any], viewer: str
) -> None:
    node = Lease.objects.get(kind=LeaseKind.GUEST).device.node_id
    url = f"/api/v1/nodes/{node}/sharing/limit/"

    problem(api(viewer).post(url, {"guests": "none"}, format="json"), 403)
    api(viewer).post(f"/nodes/{node}/sharing/", {"guests": "none"}, format="multipart")

    assert set(Device.objects.values_list("guests", flat=True)) == {"any"}
    assert Job.objects.unscoped().get(pk=pair[1].pk).state == "running"
    assert api(viewer).get(f"/api/v1/nodes/{node}/sharing/").json()["changes"] == []


def test_an_admin_limits_a_device_and_sees_the_history_of_the_switches(
    api: Any, pair: tuple[Job, Job], problem: Callable[..., Any]
) -> None:
    node = Lease.objects.get(kind=LeaseKind.GUEST).device.node_id
    url, root = f"/api/v1/nodes/{node}/sharing/limit/", api("root")

    problem(root.post(url, {"guests": "some"}, format="json"), 400)
    problem(root.post(url, {"guests": "none", "device": 99}, format="json"), 404)
    root.post(url, {"guests": "same-tenant"}, format="json")
    found = root.post(url, {"guests": "none", "device": 0}, format="json").json()
    page = root.get(f"/nodes/{node}/").content.decode()

    assert [(one["device"], one["before"], one["after"]) for one in found["changes"]] == [
        (0, "any", "none"), (None, "any", "same-tenant"),
    ]  # fmt: skip
    assert Job.objects.unscoped().get(pk=pair[1].pk).state == "preempting"
    assert "History of the switches" in page


def test_the_map_and_its_table_show_holder_and_guest(api: Any, pair: tuple[Job, Job]) -> None:
    holder, _ = pair
    report(holder)
    alice = api("alice")

    drawn = alice.get("/cluster/").content.decode()
    table = alice.get("/cluster/?view=table").content.decode()

    assert '<rect class="guest open"' in drawn
    assert "guest another tenant (open, open for 40 % of the time" in table.replace("\xa0", " ")
    assert "memory enforced, compute enforced" in table
    assert "Devices with guests" in drawn


def test_the_totals_count_states_and_holders_above_their_limit(
    api: Any, pair: tuple[Job, Job]
) -> None:
    report(pair[0])
    SharedMinute.objects.update(minute=database_now())

    found = api("bob").get("/api/v1/cluster/sharing/").json()
    text = api("root").get("/metrics").content.decode()

    assert found == {
        "sharing": True, "devices": 1, "guests": {"open": 1}, "peers": {}, "suspended": {},
        "loss_p95": 0.061, "pair_loss_p95": None, "limit": 0.05,
        "over_limit": 1, "delay_seconds": 0.0,
    }  # fmt: skip
    assert 'tessera_guests{state="open"} 1' in text
    assert 'tessera_holder_loss_ratio{quantile="0.95"} 0.061' in text


def test_the_list_of_nodes_has_the_switch_for_admins(api: Any) -> None:
    root = api("root")

    off = root.get("/nodes/").content.decode()
    root.post("/nodes/sharing/", {"sharing": "on"}, format="multipart")
    on = root.get("/nodes/").content.decode()

    assert "Turn on device sharing" in off
    assert "Turn off device sharing" in on
    assert "device sharing" not in api("alice").get("/nodes/").content.decode()
