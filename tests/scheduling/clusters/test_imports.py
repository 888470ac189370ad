"""Taking over a HiveD configuration, for real and as a dry run."""

import copy
from dataclasses import replace
from typing import Any

import pytest

from scheduling.clusters.models import Device, Node, Topology, VcQuota, VirtualCluster
from scheduling.clusters.services.import_checks import slug_of
from scheduling.clusters.services.imports import import_hived
from scheduling.clusters.services.nodes import add_node
from scheduling.clusters.services.topology import DevicesInUseError, DoesNotFitError
from scheduling.maintenance.invariants import violations
from scheduling.topology.current import current_topology
from tenants.errors import ForbiddenError, InvalidError, StaleEditError
from tenants.models import AuditEntry, Tenant
from tests.factories.nodes import NODE_FIELDS
from tests.factories.scheduling import (
    ADMIN,
    NOW,
    end,
    make_two_tenants,
    run_round,
    start,
    submit,
)
from tests.factories.tenants import make_viewer
from tests.support.hived import hived_document

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def clusters():
    return make_two_tenants()


def take(document=None, **changes):
    return import_hived(
        **{"viewer": ADMIN, "document": document or hived_document(), "now": NOW, **changes}
    )


def picture():
    """Everything that an import may change."""
    return {
        "topology": list(Topology.objects.values_list("version", flat=True)),
        "nodes": list(Node.objects.values_list("name", "removed_at")),
        "devices": list(Device.objects.order_by("id").values_list("address", "retired_at")),
        "vcs": list(VirtualCluster.objects.unscoped().values_list("name", "archived_at")),
        "quotas": list(VcQuota.objects.order_by("id").values_list("level", "count")),
        "tenants": list(Tenant.objects.unscoped().values_list("name", flat=True)),
        "audit": AuditEntry.objects.unscoped().count(),
    }


def test_an_import_makes_cells_nodes_devices_tenants_and_virtual_clusters():
    report = take(warnings=["skuTypes were left out"])

    assert report.version == 2
    assert report.nodes_created == ("dgx-1", "dgx-2")
    assert report.nodes_removed == ("node-1", "node-2", "node-3")
    assert report.nodes_without_host == ("dgx-1", "dgx-2")
    assert (report.devices_added, report.devices_removed) == (16, 24)
    assert report.virtual_clusters_created == ("VC-1",)
    assert report.virtual_clusters_changed == ("vision-a",)
    assert report.virtual_clusters_archived == ("language-a",)
    assert report.tenants_created == ("vc-1",)
    assert report.warnings == ("skuTypes were left out",)
    assert list(current_topology().chains) == ["DGX-RACK"]
    assert violations() == ()


def test_a_dry_run_reports_the_same_and_leaves_nothing_behind():
    before = picture()

    dry = take(dry_run=True)

    assert picture() == before
    wet = take()
    assert dry.dry_run
    assert dry.version == 1
    for name in (
        "nodes_created",
        "nodes_removed",
        "devices_added",
        "devices_removed",
        "tenants_created",
        "virtual_clusters_created",
        "virtual_clusters_archived",
        "cell_types_added",
    ):
        assert getattr(dry, name) == getattr(wet, name), name


def test_the_same_import_twice_changes_nothing_but_the_version():
    take()
    before = picture()

    report = take()

    after = picture()
    assert (report.devices_added, report.devices_removed, report.nodes_created) == (0, 0, ())
    assert report.virtual_clusters_changed == ()
    assert after["devices"] == before["devices"]
    assert after["vcs"] == before["vcs"]


def test_jobs_run_on_imported_cells_once_the_node_has_an_address():
    take()
    Node.objects.filter(name="dgx-1").update(state="ready", contact="ready")
    job = submit(devices=4)

    start(job)

    assert job.attempts.get().members.get().node.name == "dgx-1"


def test_an_import_that_takes_devices_from_jobs_is_refused_whole():
    start(submit())
    before = picture()

    with pytest.raises(DevicesInUseError) as caught:
        take()

    assert "1 job holds 1 of the devices" in str(caught.value)
    assert picture() == before


def test_a_dry_run_on_a_busy_cluster_reports_the_import_and_the_jobs_in_its_way():
    job = submit(devices=8)
    start(job)
    before = picture()

    tried = take(dry_run=True)
    with pytest.raises(DevicesInUseError) as refused:
        take()

    assert picture() == before
    (conflict,) = tried.conflicts
    assert "1 job holds 8 of the devices that would be removed" in conflict.message
    assert [replace(conflict, code="")] == list(refused.value.errors)
    assert conflict.code == refused.value.code == "devices-in-use"
    end(job)
    done = take()
    assert done == replace(tried, dry_run=False, version=2, conflicts=())
    assert violations() == ()


def test_jobs_on_devices_that_stay_are_no_conflict_of_an_import():
    job = submit(devices=8)
    start(job)
    document: dict[str, Any] = {"virtualClusters": {"vision-a": {"virtualCells": []}}}

    tried = take(document, dry_run=True)
    done = take(document)

    assert tried.conflicts == ()
    assert done == replace(tried, dry_run=False, version=2)
    job.refresh_from_db()
    assert job.state == "running"


def test_a_busy_virtual_cluster_that_is_not_named_loses_its_share_and_not_its_jobs():
    job = submit("bob")
    run_round()
    document: dict[str, Any] = {"virtualClusters": {"vision-a": {"virtualCells": []}}}

    report = take(document)

    assert report.virtual_clusters_emptied == ("language-a",)
    assert report.nodes_created == ()
    job.refresh_from_db()
    assert job.state == "admitted"
    assert VirtualCluster.objects.unscoped().get(name="language-a").archived_at is None
    assert VcQuota.objects.count() == 0


def test_a_document_without_virtual_clusters_keeps_the_promises():
    document = hived_document()
    del document["virtualClusters"]

    with pytest.raises(DoesNotFitError, match="which has no such chain"):
        take(document)


def test_quotas_that_do_not_fit_are_refused_with_the_level():
    document = hived_document()
    document["virtualClusters"]["VC-1"]["virtualCells"][0]["cellNumber"] = 3
    before = picture()

    with pytest.raises(DoesNotFitError) as caught:
        take(document)

    assert "DGX" in str(caught.value)
    assert caught.value.field == "virtualClusters"
    assert picture() == before


def spoil(path, value):
    document = hived_document()
    *way, last = path
    place = document
    for step in way:
        place = place[step]
    if value is KeyError:
        del place[last]
    else:
        place[last] = value
    return document


PC, VC = "physicalCluster", "virtualClusters"


@pytest.mark.parametrize(
    "document",
    [
        {},
        [],
        "x",
        {"kind": "other"},
        spoil([PC], []),
        spoil([PC, "cellTypes"], 7),
        spoil([PC, "cellTypes", "DGX", "childCellType"], KeyError),
        spoil([PC, "cellTypes", "DGX", "childCellType"], "DGX"),
        spoil([PC, "cellTypes", "DGX", "childCellNumber"], "8"),
        spoil([PC, "cellTypes", "DGX", "childCellNumber"], 0),
        spoil([PC, "cellTypes", "DGX", "childCellNumber"], 10**9),
        spoil([PC, "cellTypes", "DGX", "isNodeLevel"], "yes"),
        spoil([PC, "cellTypes", "DGX", "isNodeLevel"], False),
        spoil([PC, "physicalCells"], {}),
        spoil([PC, "physicalCells", 0, "cellType"], "NONE"),
        spoil([PC, "physicalCells", 0, "cellType"], "SOCKET"),
        spoil([PC, "physicalCells", 0, "cellChildren", 0, "cellAddress"], "a/b"),
        spoil([PC, "physicalCells", 0, "cellChildren", 0, "cellAddress"], "dgx-2"),
        spoil([PC, "physicalCells", 0, "cellChildren", 0, "cellAddress"], "n" * 64),
        spoil([PC, "physicalCells", 0, "cellChildren", 0, "cellAddress"], "a\nb"),
        spoil([PC, "physicalCells", 0, "cellChildren"], [{}] * 5),
        spoil([VC], 7),
        spoil([VC, "VC-1"], 7),
        spoil([VC, "VC-1", "virtualCells"], 7),
        spoil([VC, "VC-1", "virtualCells", 0, "cellType"], "NONE"),
        spoil([VC, "VC-1", "virtualCells", 0, "cellType"], "DGX-RACK.NONE"),
        spoil([VC, "VC-1", "virtualCells", 0, "cellNumber"], -1),
        spoil([VC, "VC-1", "virtualCells", 0, "cellNumber"], 1.5),
        spoil([VC, "VC-1", "pinnedCells"], [{"pinnedCellId": "none"}]),
        spoil([VC, "a b"], {"virtualCells": []}),
        spoil([VC, ""], {"virtualCells": []}),
    ],
)
def test_a_malformed_document_is_refused_with_field_and_remedy_and_changes_nothing(document):
    before = picture()

    with pytest.raises(InvalidError) as caught:
        take(copy.deepcopy(document) or {"x": 1})

    assert caught.value.field
    assert caught.value.remedy
    assert picture() == before


def test_the_owner_of_a_new_virtual_cluster_can_be_named():
    report = take(owners={"VC-1": "language"})

    assert report.tenants_created == ()
    assert VirtualCluster.objects.unscoped().get(name="VC-1").tenant.name == "language"


@pytest.mark.parametrize(
    "owners", [{"VC-1": "nobody"}, {"vision-a": "language"}, {"VC-9": "vision"}]
)
def test_a_wrong_owner_is_refused(owners):
    with pytest.raises(InvalidError) as caught:
        take(owners=owners)

    assert caught.value.field.startswith("owners.")


def test_an_import_against_an_old_version_is_refused():
    take()

    with pytest.raises(StaleEditError):
        take(expected_version=1)


def test_only_cluster_admins_import():
    for name in ("alice", "ada", "carol"):
        with pytest.raises(ForbiddenError):
            take(viewer=make_viewer(name))


def test_an_imported_node_is_added_under_its_name():
    take()

    row = add_node(viewer=ADMIN, now=NOW, **{**NODE_FIELDS, "name": "dgx-1"})

    assert row.pk == Node.objects.get(name="dgx-1").pk
    assert Device.objects.filter(node=row, retired_at=None).count() == 8


@pytest.mark.parametrize(
    ("name", "slug"),
    [("VC-1", "vc-1"), ("a.b_c", "a-b-c"), ("9x", "t-9x"), ("x" * 63, "x" * 40)],
)
def test_a_tenant_named_after_a_virtual_cluster_has_a_name_that_tenants_have(name, slug):
    assert slug_of(name) == slug
