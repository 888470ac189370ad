"""Device sharing in REST and on pages: who sees what, and who may switch it."""

from collections.abc import Callable
from typing import Any

import pytest

from scheduling.clusters.models import ClusterRules, Device, VirtualCluster
from scheduling.enums import LeaseKind
from scheduling.jobs.models import Job
from scheduling.runs.models import Lease, Member
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


def test_the_list_of_nodes_has_the_switch_for_admins(api: Any) -> None:
    root = api("root")

    off = root.get("/nodes/").content.decode()
    root.post("/nodes/sharing/", {"sharing": "on"}, format="multipart")
    on = root.get("/nodes/").content.decode()

    assert "Turn on device sharing" in off
    assert "Turn off device sharing" in on
    assert "device sharing" not in api("alice").get("/nodes/").content.decode()
