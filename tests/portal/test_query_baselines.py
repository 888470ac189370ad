"""How many questions each page and list asks the database: exactly so many, whatever its size."""

import random
from collections.abc import Iterator, Mapping
from typing import Final

import pytest
from django.core.cache import cache
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from portal import health
from scheduling.clusters.models import Device
from scheduling.runs.models import Lease
from tenants.services.announcements import CACHE_KEY
from tests.factories.scheduling import hold_devices, make_many_jobs
from tests.support.cluster_pages import Stage, make_stage, sign_in

pytestmark = pytest.mark.django_db

BASELINES: Final[Mapping[str, int]] = {
    "/": 32,
    "/mine/": 24,
    "/inbox/": 8,
    "/cluster/?view=table": 32,
    "/overview/day/": 9,
    "/nodes/": 19,
    "/nodes/{node}/": 28,
    "/virtual-clusters/": 24,
    "/virtual-clusters/{vc}/": 31,
    "/virtual-clusters/{vc}/past/": 14,
    "/virtual-clusters/{vc}/room/": 20,
    "/tenants/": 22,
    "/tenants/{tenant}/": 26,
    "/tenants/{tenant}/job-limits/": 13,
    "/job-limits/": 11,
    "/people/": 9,
    "/tokens/": 8,
    "/priority-classes/": 8,
    "/audit/": 10,
    "/jobs/": 16,
    "/jobs/?state=queued": 14,
    "/jobs/?state=ended": 13,
    "/jobs/{job}/": 28,
    "/jobs/{running}/": 29,
    "/jobs/{running}/events/": 22,
    "/jobs/{running}/attempts/": 20,
    "/timeline/": 15,
    "/sweeps/": 8,
    "/job-templates/": 8,
    "/usage/": 12,
    "/fleet/": 10,
    "/fleet/nodes.json": 6,
    "/fleet/waits.json": 6,
    "/policies/": 11,
    "/policies/what-if/": 10,
    # Without one, the cluster with most idle devices is sought for new people.
    "/submit/?virtual_cluster=vision-a": 17,
    "/api/v1/cluster/": 16,
    "/api/v1/jobs/": 7,
    "/api/v1/jobs/{running}/": 11,
    "/api/v1/nodes/": 13,
    "/api/v1/virtual-clusters/": 16,
    "/api/v1/virtual-clusters/{vc}/": 25,
    "/api/v1/tenants/": 5,
    "/api/v1/job-limits/cluster/": 8,
    "/api/v1/priority-classes/": 5,
    "/api/v1/rounds/": 5,
    "/api/v1/timeline/": 9,
    "/api/v1/sweeps/": 5,
    "/api/v1/job-templates/": 5,
    "/api/v1/usage/": 8,
    "/api/v1/audit/": 6,
}
"""As a cluster admin, who sees the most; a change here is a change of what pages cost."""


@pytest.fixture(autouse=True)
def nothing_cached() -> Iterator[None]:
    cache.clear()
    cache.set(health.CACHE_KEY, (), None)
    cache.set(CACHE_KEY, (), None)  # kept for seconds, and pages may take as long here
    yield
    cache.clear()


@pytest.mark.parametrize(("nodes", "jobs"), [(2, 0), (9, 40)], ids=["small", "larger"])
def test_each_page_and_list_asks_exactly_as_often_as_written_down(
    client: Client, nodes: int, jobs: int
) -> None:
    stage = make_stage(nodes)
    _fill(stage, jobs)
    sign_in(client, "root")

    counts = {path: _questions(client, stage, path) for path in BASELINES}

    assert counts == BASELINES


def _fill(stage: Stage, jobs: int) -> None:
    made = make_many_jobs(jobs, owner="alice", virtual_cluster=stage.vision_a, tenant=stage.vision)
    held = Lease.objects.filter(released_at=None).values("device_id")
    free = list(Device.objects.exclude(pk__in=held).order_by("id"))
    hold_devices(made[: jobs // 2], free, chance=random.Random(3))


def _questions(client: Client, stage: Stage, path: str) -> int:
    address = path.format(
        node=stage.nodes[0].pk,
        vc=stage.vision_a.pk,
        tenant=stage.vision.pk,
        job=stage.waiting.pk,
        running=stage.running.pk,
    )
    assert client.get(address).status_code == 200, address
    with CaptureQueriesContext(connection) as asked:
        client.get(address)
    return len(asked)
