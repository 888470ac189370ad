"""Two requests for a link probe of one type at the same moment."""

import pytest

from scheduling.jobs.models import Job
from scheduling.jobs.queries.submit_context import read_submit_context
from scheduling.parallelism.links import probe_links
from scheduling.parallelism.models import LinkProbe
from tenants.errors import ConflictError
from tenants.roles import Role
from tests.factories.cluster import (
    NOW,
    make_cluster,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.tenants import make_tenant, make_user, make_viewer
from tests.support.databases import at_once, migrated_template, real_database

__all__ = ["migrated_template", "real_database"]


def probe() -> Job:
    viewer = make_viewer("root")
    return probe_links(
        viewer=viewer,
        device_type="a",
        virtual_cluster="vision-a",
        nodes=2,
        submit_context=read_submit_context(viewer=viewer, images_ignored=False, host_network=True),
        now=NOW,
    )


@pytest.mark.usefixtures("real_database")
def test_only_one_of_several_probes_of_a_type_at_once_is_accepted() -> None:
    make_cluster(3)
    make_priority_classes()
    make_virtual_cluster("vision-a", make_tenant("vision", alice=Role.MEMBER), cells=2)
    make_user("root", is_cluster_admin=True)

    outcomes = at_once(probe, probe, probe)

    refused = [outcome for outcome in outcomes if isinstance(outcome, ConflictError)]
    assert len(refused) == 2, outcomes
    assert LinkProbe.objects.count() == 1
