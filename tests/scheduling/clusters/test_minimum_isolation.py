"""Minimum isolation levels of the cluster and of virtual clusters: the stricter one counts."""

import pytest

from scheduling.clusters.models import Node, VirtualCluster
from scheduling.clusters.services.cluster_rules import cluster_rules, set_least_isolation
from scheduling.clusters.services.nodes import update_node
from scheduling.clusters.services.topology import DoesNotFitError
from scheduling.jobs.models import Job
from scheduling.jobs.queries.submit_context import read_submit_context
from scheduling.jobs.validation import check_draft
from scheduling.runs.models import Member
from tenants.errors import ForbiddenError, InvalidError, StaleEditError
from tenants.models import AuditEntry
from tests.factories.cluster import job_document
from tests.factories.scheduling import ADMIN, NOW, change_vc, make_two_tenants, run_round, submit
from tests.factories.tenants import make_viewer

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _nodes_of_two_levels():
    make_two_tenants(2)
    Node.objects.filter(name="node-1").update(isolation_level="namespace")
    Node.objects.filter(name="node-2").update(isolation_level="user")


def require_level(vc, level, viewer=ADMIN):
    change_vc(vc, viewer=viewer, least_isolation=level)


def node_of(job):
    return Member.objects.get(attempt__job=job)


def test_jobs_of_a_strict_virtual_cluster_run_on_strong_nodes_and_carry_the_level():
    require_level("vision-a", "user")
    strict, lax = submit("alice"), submit("bob")

    run_round()

    assert (node_of(strict).node.name, node_of(strict).least_isolation) == ("node-2", "user")
    assert (node_of(lax).node.name, node_of(lax).least_isolation) == ("node-1", "namespace")


def test_the_clusters_minimum_holds_for_all_and_is_audited():
    Node.objects.update(has_docker=True)
    rules = set_least_isolation(viewer=ADMIN, level="container", now=NOW)
    Node.objects.update(has_docker=False)  # as a later probe finds
    job = submit("alice")

    run_round()

    waiting = Job.objects.unscoped().get(pk=job.pk)
    assert (waiting.reason_code, cluster_rules().least_isolation) == (
        "node-not-isolated",
        "container",
    )
    assert "level container" in waiting.reason_text
    entry = AuditEntry.objects.unscoped().get(action="cluster.least_isolation")
    assert entry.after == {"least_isolation": "container"}
    with pytest.raises(StaleEditError):
        set_least_isolation(
            viewer=ADMIN, level="none", now=NOW, expected_version=rules.version - 1
        )


def test_only_admins_set_levels_and_only_those_that_exist():
    with pytest.raises(ForbiddenError):
        set_least_isolation(viewer=make_viewer("ada"), level="user", now=NOW)
    with pytest.raises(ForbiddenError):
        require_level("vision-a", "user", make_viewer("ada"))
    with pytest.raises(InvalidError):
        set_least_isolation(viewer=ADMIN, level="strong", now=NOW)
    with pytest.raises(InvalidError):
        require_level("vision-a", "strong")


def test_a_level_that_leaves_a_guarantee_without_a_place_is_refused_with_the_nodes():
    with pytest.raises(DoesNotFitError, match=r"vision-a has no room .* node-1, node-2 is"):
        require_level("vision-a", "container")
    with pytest.raises(DoesNotFitError, match=r"-a has no room for 1 .* node-1 is dedicated"):
        set_least_isolation(viewer=ADMIN, level="user", now=NOW)

    assert VirtualCluster.objects.unscoped().exclude(least_isolation="none").count() == 0
    assert cluster_rules().least_isolation == "none"
    assert not AuditEntry.objects.unscoped().filter(action="cluster.least_isolation").exists()
    require_level("vision-a", "user")  # node-2 is left for it
    with pytest.raises(DoesNotFitError, match="-a has no room"):
        require_level("language-a", "user")


def test_a_dedication_that_leaves_a_guarantee_without_a_place_is_refused_with_the_node():
    ids = dict(Node.objects.values_list("name", "id"))
    update_node(viewer=ADMIN, node_id=ids["node-1"], now=NOW, dedicated_to=["vision"])

    with pytest.raises(DoesNotFitError, match=r"language-a has no room .*node-2"):
        update_node(viewer=ADMIN, node_id=ids["node-2"], now=NOW, dedicated_to=["vision"])

    assert Node.objects.get(name="node-2").dedicated_to == []
    entry = AuditEntry.objects.unscoped().filter(action="node.update").latest("id")
    assert (entry.before["dedicated_to"], entry.after["dedicated_to"]) == ([], ["vision"])
    update_node(viewer=ADMIN, node_id=ids["node-2"], now=NOW, dedicated_to=["language"])


def test_a_level_and_a_smaller_guarantee_are_judged_together():
    changed = change_vc("vision-a", least_isolation="container", cells=[])

    assert changed.least_isolation == "container"


def test_levels_may_be_lowered_where_a_guarantee_has_no_place():
    Node.objects.update(has_docker=True)
    set_least_isolation(viewer=ADMIN, level="container", now=NOW)
    Node.objects.update(has_docker=False)

    set_least_isolation(viewer=ADMIN, level="user", now=NOW)

    assert cluster_rules().least_isolation == "user"


def warned(**worker):
    viewer = make_viewer("alice")
    submit_context = read_submit_context(viewer=viewer, images_ignored=False)
    document = job_document(worker=worker)
    return check_draft(document=document, viewer=viewer, submit_context=submit_context).warnings


def test_a_submit_names_shared_networks_and_visible_paths():
    Node.objects.update(plain_network="connected", container_network="own")
    vision = VirtualCluster.objects.unscoped().get(name="vision-a").tenant_id
    quiet = warned()
    Node.objects.filter(name="node-1").update(
        plain_network="shared",
        container_network="shared",
        visible_paths=[
            {"path": "/data", "writable": False, "tenants": []},
            {"path": "/scratch", "writable": True, "tenants": [vision]},
            {"path": "/of-others", "writable": False, "tenants": [0]},
        ],
    )
    some = warned()
    Node.objects.update(plain_network="shared", visible_paths=[])

    assert quiet == ()
    assert some == (
        "Network may be shared: some nodes do not give this job its own network.",
        "Visible paths of nodes: /data, /scratch:rw.",
    )
    assert warned() == ("Network shared: no node gives this job its own network.",)
    assert warned(image="team/base:1") == (
        "Network may be shared: some nodes do not give this job its own network.",
    )
    assert warned(instances=2) == (
        "Network shared: instances of a gang use the network of their nodes.",
    )


def test_many_visible_paths_are_cut():
    paths = [{"path": f"/data/{n}", "writable": False, "tenants": []} for n in range(7)]
    Node.objects.update(visible_paths=paths)

    assert warned() == (
        "Visible paths of nodes: /data/0, /data/1, /data/2, /data/3, /data/4 and 2 more.",
    )


def test_a_submit_reports_what_nodes_do_not_do_for_the_job():
    quiet = warned()
    Node.objects.filter(name="node-1").update(isolation_level="none", enforces_limits=False)
    some = warned()
    Node.objects.update(isolation_level="none", enforces_limits=False)

    assert quiet == ()
    assert some == (
        "The job may run without isolation: some nodes have isolation level none.",
        "CPU and memory limits are not enforced on some nodes.",
    )
    assert warned() == (
        "Not isolated: all nodes have isolation level none.",
        "CPU and memory limits are not enforced on any node.",
    )
    assert warned(image="team/base:1") == ("CPU and memory limits are not enforced on any node.",)
