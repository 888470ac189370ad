"""Link tables: probes of admins, their reports, the planner, REST, and the page."""

from datetime import timedelta

import pytest
from django.test import Client as Browser

from scheduling.clusters.models import Node
from scheduling.jobs.models import Job, JobEvent
from scheduling.jobs.queries.submit_context import read_submit_context
from scheduling.parallelism.links import VALID, link_tables, measured_points, probe_links
from scheduling.parallelism.models import LinkMeasurement, LinkProbe, ModelProfile
from scheduling.parallelism.services import plan_profiles, store_profile
from tenants.errors import ConflictError, ForbiddenError, InvalidError
from tenants.roles import Role
from tests.factories.attempts import end_member, members_of, run_members
from tests.factories.cluster import (
    NOW,
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.hybrid import hybrid_job, profile_document
from tests.factories.scheduling import run_round
from tests.factories.tenants import make_tenant, make_user, make_viewer
from tests.support.cluster_pages import sign_in

pytestmark = pytest.mark.django_db
LATER = NOW + timedelta(minutes=1)
PAIR_RANKS = (1, 2, 4, 8)
"""A device of the same switch, the same socket, the same node, and another node."""


@pytest.fixture(autouse=True)
def _cluster():
    make_cluster(3)
    make_priority_classes()
    make_virtual_cluster("vision-a", make_tenant("vision", alice=Role.MEMBER), cells=2)
    make_user("root", is_cluster_admin=True)


def probe(username: str = "root", device_type: str = "a", nodes: int = 2) -> Job:
    viewer = make_viewer(username)
    return probe_links(
        viewer=viewer,
        device_type=device_type,
        virtual_cluster="vision-a",
        nodes=nodes,
        submit_context=read_submit_context(viewer=viewer, images_ignored=False, host_network=True),
        now=NOW,
    )


def document(ranks: int = 16, **changes) -> dict:
    points = [
        [primitive, 2, rank, size, 1e-5 * rank * (1 + size / 65536), 0.1]
        for rank in PAIR_RANKS
        for primitive in ("send", "all_reduce")
        for size in (4096, 65536)
    ]
    return {"version": 1, "transport": "gloo", "ranks": ranks, "points": points} | changes


def reported(found: dict | None = None) -> Job:
    job = probe()
    run_round()
    store_profile(job_id=job.pk, attempt=1, document=found or document(), now=LATER)
    return job


def test_a_probe_measures_each_class_of_link():
    job = reported()

    rows = link_tables(make_viewer("root"), now=LATER)

    assert [row.link_class for row in rows] == ["pcie", "socket", "node", "network"]
    assert rows[0].latency == pytest.approx(1e-5 * (1 + 1 / 16))
    assert rows[3].bandwidth == pytest.approx(65536 / 16e-5)
    assert (rows[0].job, rows[0].nodes, rows[0].is_used) == (job.pk, ("node-1", "node-2"), True)
    assert JobEvent.objects.get(job=job, kind="links").text == "Links of 4 classes measured."


def test_only_admins_of_nodes_probe_and_read_links(client: Browser):
    reported()

    with pytest.raises(ForbiddenError):
        probe("alice")
    with pytest.raises(ForbiddenError):
        link_tables(make_viewer("alice"), now=NOW)
    sign_in(client, "alice")
    wanted = {"device_type": "a", "virtual_cluster": "vision-a"}
    posted = client.post("/api/v1/link-tables/", wanted, content_type="application/json")
    assert posted.status_code == 403
    assert client.get("/api/v1/link-tables/").status_code == 403
    assert client.get("/link-tables/").status_code == 403


def test_only_one_probe_of_a_type_is_live_and_its_values_are_checked():
    with pytest.raises(InvalidError, match="1 to 2 nodes"):
        probe(nodes=3)
    with pytest.raises(InvalidError, match="device type"):
        probe(device_type="b")
    probe()

    with pytest.raises(ConflictError, match="already measures"):
        probe()


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"transport": "pigeon"},
        {"ranks": 8},
        {"points": []},
        {"points": [["send", 2, 1, 4096, -1.0, 0.0]]},
        {"points": [["send", 2, 1, 4096, float("nan"), 0.0]]},
        {"points": [["send", 2, 16, 4096, 1.0, 0.0]]},
        {"points": [["all_reduce", 4, 1, 4096, 1.0, 0.0]]},
        {"points": [["send", 2, 1, 4096, 1.0, 0.0]] * 600},
    ],
)
def test_a_hostile_report_is_an_event_only(change):
    job = reported(document(**change))

    assert not LinkMeasurement.objects.exists()
    assert "not valid" in JobEvent.objects.get(job=job, kind="links").text


def test_a_job_that_is_not_a_probe_cannot_report_links():
    job = make_job(worker={"command": "python3 -m tessera.train.links", "devices": 8})
    run_round()

    store_profile(job_id=job.pk, attempt=1, document=document(8), now=NOW)

    assert not LinkMeasurement.objects.exists()
    assert not LinkProbe.objects.exists()


def test_the_planner_uses_measured_links_and_drops_old_ones():
    job = hybrid_job()
    ModelProfile.objects.create(
        tenant=job.tenant,
        fingerprint=job.model_fingerprint,
        device_type="a",
        job=job,
        requested_at=NOW,
        document=profile_document(),
    )
    plan_profiles(now=NOW)
    before = {(r["devices"], r["stages"]): r for r in ModelProfile.objects.unscoped().get().grids}
    assert before[1, 1]["is_projected"] is False
    assert before[2, 1]["is_projected"] is True

    reported()
    assert plan_profiles(now=LATER) == 1
    after = {(r["devices"], r["stages"]): r for r in ModelProfile.objects.unscoped().get().grids}

    assert after[2, 1]["is_projected"] is False
    # Groups of 4 were not measured, pipelines of 4 stages need pairs only.
    assert after[4, 1]["is_projected"] is True
    assert after[4, 4]["is_projected"] is False
    assert after[2, 1]["step_seconds"] < before[2, 1]["step_seconds"]
    assert plan_profiles(now=LATER) == 0
    assert measured_points("a", now=LATER + VALID) == {}


def test_the_page_of_a_measured_node_shows_its_links_to_admins(client: Browser):
    reported()
    nodes = {node.name: node.pk for node in Node.objects.all()}
    sign_in(client, "root")

    measured = client.get(f"/nodes/{nodes['node-1']}/").content.decode()
    other = client.get(f"/nodes/{nodes['node-3']}/").content.decode()
    sign_in(client, "alice")
    hidden = client.get(f"/nodes/{nodes['node-1']}/").content.decode()

    assert "Links between devices" in measured
    assert "Links between devices" not in other + hidden


def test_rest_and_page_show_the_tables_and_submit_probes(client: Browser):
    job = reported()
    run_members(job)
    for member in members_of(job):
        end_member(member, 0)
    sign_in(client, "root")

    body = client.get("/api/v1/link-tables/").json()["results"]
    page = client.get("/link-tables/").content.decode()
    posted = client.post(
        "/link-tables/", {"device_type": "a", "virtual_cluster": "vision-a", "nodes": "1"}
    )
    again = client.post(
        "/link-tables/", {"device_type": "a", "virtual_cluster": "vision-a", "nodes": "1"}
    )

    assert [row["link_class"] for row in body] == ["pcie", "socket", "node", "network"]
    assert "node-1, node-2" in page
    assert posted.status_code == 302
    new = LinkProbe.objects.exclude(pk=job.pk).get().job
    assert (new.devices, new.job_class) == (8, "opportunistic")
    assert "already measures" in again.content.decode()
