"""The whole portal on nodes that isolate no jobs: the demo works, one tenant on each node."""

from collections import defaultdict
from pathlib import Path

import pytest

from tests.support.waiting import wait_until
from tests.support.whole_portal import WholePortal, whole_portal

pytestmark = [pytest.mark.redis, pytest.mark.timeout(900)]

THIRD = """
from django.utils import timezone
from scheduling.jobs.queries.submit_context import read_submit_context
from scheduling.clusters.services.cluster_edits import CreateVc
from scheduling.clusters.services.reconfiguration import edit_virtual_cluster
from scheduling.jobs.services.submission import Submission, submit_job
from tenants.models import User
from tenants.roles import Role
from tenants.services import add_member, create_tenant, create_user
from tenants.selectors import viewer_of
from tenants.viewers import Viewer

system, now = Viewer.system("tests"), timezone.now()
tenant = create_tenant(viewer=system, name="audio")
create_user(viewer=system, username="carol", password="correct horse battery")
add_member(viewer=system, tenant_id=tenant.pk, username="carol", role=Role.MEMBER)
edit_virtual_cluster(viewer=system, edit=CreateVc(name="audio-a", tenant="audio"), now=now)
viewer = viewer_of(User.objects.get(username="carol"))
worker = {"instances": 1, "devices": 1, "command": "echo third"}
document = {
    "name": "third", "virtual_cluster": "audio-a", "class": "opportunistic",
    "roles": {"worker": worker},
}
submit_job(
    submission=Submission(document=document), viewer=viewer, now=now,
    submit_context=read_submit_context(viewer=viewer, images_ignored=True),
)
"""


def tenants_by_node(portal: WholePortal) -> dict[str, set[str]]:
    """Every tenant of which a process has ever run on a node."""
    found: dict[str, set[str]] = defaultdict(set)
    for row in portal.rows(
        "select distinct n.name node, t.name tenant from scheduling_member m"
        " join scheduling_node n on n.id = m.node_id"
        " join scheduling_attempt a on a.id = m.attempt_id"
        " join scheduling_job j on j.id = a.job_id"
        " join tenants_tenant t on t.id = j.tenant_id where m.isolation <> ''"
    ):
        found[row["node"]].add(row["tenant"])
    return dict(found)


def test_two_tenants_get_nodes_of_their_own_and_the_third_waits_with_the_reason(
    tmp_path: Path,
) -> None:
    job = {"instances": 1, "devices": 1, "command": "sleep 5"}
    with whole_portal(tmp_path, "--demo-isolation", "none") as portal:
        portal.stop_examples()
        for user, vc in (("alice", "vision-a"), ("bob", "language-a")):
            with portal.client(user) as client:
                for number in range(3):
                    client.submit(
                        {"name": f"{user}-{number}", "virtual_cluster": vc, "roles": {"w": job}}
                    )
        wait_until(
            lambda: (
                not portal.rows(
                    "select 1 from scheduling_job where state not in"
                    " ('succeeded', 'failed', 'stopped')"
                )
            ),
            300,
            "the end of all jobs",
        )

        made = portal.manage("shell", "-c", THIRD)
        assert made.returncode == 0, made.stderr
        wait_until(
            lambda: (
                [
                    row["reason_code"]
                    for row in portal.rows(
                        "select reason_code from scheduling_job where name = 'third'"
                    )
                ]
                == ["node-not-isolated"]
            ),
            60,
            "the reason of the third tenant",
        )

        met = tenants_by_node(portal)
        owners = {
            row["node"]: row["tenant"]
            for row in portal.rows(
                "select n.name node, t.name tenant from scheduling_nodetenancy o"
                " join scheduling_node n on n.id = o.node_id"
                " join tenants_tenant t on t.id = o.tenant_id where o.reset_at is null"
            )
        }
        levels = {row[0] for row in portal.rows("select isolation from scheduling_member")}
        ended = portal.rows(
            "select 1 from scheduling_job where name like 'alice-%' or name like 'bob-%'"
            " and state = 'succeeded'"
        )
    assert {tenant for tenants in met.values() for tenant in tenants} == {"vision", "language"}
    assert all(len(tenants) == 1 for tenants in met.values()), met
    assert {node: {tenant} for node, tenant in owners.items()} == met
    assert levels <= {"none", ""}
    assert len(ended) == 6
