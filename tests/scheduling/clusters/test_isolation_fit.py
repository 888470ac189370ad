"""Shares on nodes that do not isolate jobs: whole nodes for each tenant, or a refusal."""

import pytest

from scheduling.clusters.models import Node, NodeTenancy
from scheduling.clusters.queries.shapes import try_shape
from scheduling.clusters.services.cluster_edits import CreateVc
from scheduling.clusters.services.reconfiguration import reconfigure
from scheduling.clusters.services.topology import DoesNotFitError
from tenants.models import Tenant
from tests.factories.scheduling import ADMIN, NOW, change_vc, make_two_tenants

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _three_nodes():
    make_two_tenants(3)
    Node.objects.update(isolation_level="none", probed_at=NOW)


def promise(name, *cells):
    quotas = [{"chain": "a-node", "level": level, "count": n} for level, n in cells]
    change_vc(name, cells=quotas)


def test_parts_of_nodes_round_up_to_whole_nodes_for_each_tenant():
    promise("vision-a", ("a-node", 1), ("a-socket", 1))

    with pytest.raises(DoesNotFitError, match=r"language-a has no room .* one tenant at a time"):
        promise("language-a", ("a-node", 1), ("a-pcie", 1))
    promise("language-a", ("a-socket", 2))


def test_nodes_that_isolate_jobs_are_shared_in_parts():
    Node.objects.update(isolation_level="namespace")
    promise("vision-a", ("a-node", 1), ("a-socket", 1))

    promise("language-a", ("a-node", 1), ("a-socket", 1))


def test_a_share_that_needs_the_node_of_another_tenant_names_the_node():
    language = Tenant.objects.unscoped().get(name="language")
    promise("vision-a", ("a-node", 2))
    for name in ("node-2", "node-3"):
        NodeTenancy.objects.create(node=Node.objects.get(name=name), tenant=language, taken_at=NOW)
    promise("vision-a", ("a-node", 1))  # less than before is no loss

    with pytest.raises(DoesNotFitError, match="node-2, node-3 belongs to another tenant"):
        promise("vision-a", ("a-node", 2))


def test_the_preview_and_a_reconfiguration_report_the_same():
    promise("language-a", ("a-node", 1), ("a-socket", 1))
    cells = ({"chain": "a-node", "level": "a-pcie", "count": 1},)

    answer = try_shape(ADMIN, {("a-node", "a-pcie"): 1}, name="audio-a")
    fits = {
        tenant: reconfigure(
            viewer=ADMIN,
            edits=(CreateVc(name="audio-a", tenant=tenant, cells=cells),),
            now=NOW,
            dry_run=True,
        ).effect.change.fits
        for tenant in ("vision", "language")
    }

    assert not answer.fits
    assert "one tenant at a time" in answer.witness
    # Those of one tenant share the node.
    assert fits == {"vision": False, "language": True}
