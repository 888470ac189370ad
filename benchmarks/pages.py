"""Server time of pages and lists at size, without changes and after each change.

Run by hand: ``python -m benchmarks.pages [--still N] [--moving N]``; prints JSON entries, one a
line. Times are those of the complete response in this process, including waits for the processor;
``page_cpu`` is the processor time.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.entries import entry, p95
from benchmarks.rounds import end_some_jobs, installation
from benchmarks.site import SIZE, fill_installation

PAGES: Final = (
    ("home", "/mine/"),
    ("overview", "/cluster/"),
    ("overview_part", "/cluster/?part=live"),
    ("nodes", "/nodes/"),
    ("node", "/nodes/{node}/"),
    ("virtual_clusters", "/virtual-clusters/"),
    ("virtual_cluster", "/virtual-clusters/{vc}/"),
    ("virtual_cluster_past", "/virtual-clusters/{vc}/past/"),
    ("virtual_cluster_room", "/virtual-clusters/{vc}/room/"),
    ("tenants", "/tenants/"),
    ("tenant", "/tenants/{tenant}/"),
    ("people", "/people/"),
    ("priority_classes", "/priority-classes/"),
    ("jobs", "/jobs/"),
    ("jobs_queued", "/jobs/?state=queued"),
    ("jobs_ended", "/jobs/?state=ended"),
    ("jobs_of_a_user", "/jobs/?user=alice&state=ended"),
    ("jobs_by_reason", "/jobs/?reason=vc-guarantee-in-use"),
    ("jobs_searched", "/jobs/?q=nothing-has-this-name"),
    ("job", "/jobs/{job}/"),
    ("submit", "/submit/"),
    ("audit", "/audit/"),
    ("timeline", "/timeline/"),
    ("sweeps", "/sweeps/"),
    ("job_templates", "/job-templates/"),
    ("usage", "/usage/"),
    ("usage_by_job", "/usage/?by=job"),
    ("fleet", "/fleet/?range=90d"),
    ("fleet_nodes", "/fleet/nodes.json?range=90d"),
    ("fleet_health", "/fleet/health.json?range=90d"),
    ("fleet_waits", "/fleet/waits.json?range=90d"),
    ("fleet_shares", "/fleet/shares.json?range=90d"),
    ("policies", "/policies/"),
    ("what_if", "/policies/what-if/"),
    ("estimates", "/estimates/"),
    ("api_jobs", "/api/v1/jobs/"),
    ("api_jobs_of_a_user", "/api/v1/jobs/?user=alice&state=ended"),
    ("api_job", "/api/v1/jobs/{job}/"),
    ("api_why", "/api/v1/jobs/{waiting}/why/"),
    ("api_cluster", "/api/v1/cluster/"),
    ("api_nodes", "/api/v1/nodes/"),
    ("api_virtual_clusters", "/api/v1/virtual-clusters/"),
    ("api_virtual_cluster", "/api/v1/virtual-clusters/{vc}/"),
    ("api_tenants", "/api/v1/tenants/"),
    ("api_rounds", "/api/v1/rounds/"),
    ("api_timeline", "/api/v1/timeline/"),
    ("api_usage", "/api/v1/usage/"),
)
"""Measured pages, as a cluster admin, whose pages have the most content."""


@dataclass
class Times:
    """Seconds of each request: elapsed, and on the processor."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def measure(still: int, moving: int) -> Iterator[dict[str, Any]]:
    """Yield all entries, as in ``results/latest.json``, as soon as they are known."""
    with installation():
        fill_installation()
        client, ids = _signed_in(), _ids()
        context = f"server time as cluster admin; {SIZE}"
        worst = 0.0
        for name, template in PAGES:
            path = template.format(**ids)
            _ask(client, path, Times())
            for kind, number, between in (
                ("page", still, _nothing),
                ("page_after_a_change", moving, _end_one_job),
            ):
                times = Times()
                for _ in range(number):
                    between()
                    _ask(client, path, times)
                worst = max(worst, p95(times.wall))
                for part, value in (
                    ("median", statistics.median(times.wall)),
                    ("p95", p95(times.wall)),
                    ("cpu", statistics.median(times.cpu)),
                ):
                    yield entry(f"{kind}_{part}_{name}", value * 1e3, "ms", "lower", context)
        yield entry("page_p95_worst", worst * 1e3, "ms", "lower", context)


def _signed_in() -> Any:
    from django.test import Client

    from tenants.models import User

    client = Client()
    client.force_login(User.objects.get(username="root"))
    return client


def _ids() -> dict[str, int]:
    from scheduling.clusters.models import Node, VirtualCluster
    from scheduling.jobs.models import Job
    from tenants.models import Tenant

    jobs = Job.objects.unscoped().order_by("id")
    return {
        "node": Node.objects.order_by("id")[0].pk,
        "vc": VirtualCluster.objects.unscoped().order_by("id")[0].pk,
        "tenant": Tenant.objects.unscoped().order_by("id")[0].pk,
        "job": jobs.filter(state="running")[0].pk,
        "waiting": jobs.filter(state="queued")[0].pk,
    }


def _ask(client: Any, path: str, times: Times) -> None:
    headers = {"HX-Request": "true"} if "part=" in path else {}
    begun, worked = time.perf_counter(), time.process_time()
    response = client.get(path, headers=headers)
    times.cpu.append(time.process_time() - worked)
    times.wall.append(time.perf_counter() - begun)
    if response.status_code != 200:
        raise RuntimeError(f"{path} answered {response.status_code}")


def _nothing() -> None:
    """Leave the cluster unchanged."""


def _end_one_job() -> None:
    from django.utils import timezone

    end_some_jobs(timezone.now(), count=1)


def main() -> None:
    """Print the entries as they come."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--still", type=int, default=40)
    parser.add_argument("--moving", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TESSERA_DATA_DIR"] = folder
        os.environ["TESSERA_REDIS_URL"] = "memory://"
        os.environ["TESSERA_ALLOWED_HOSTS"] = "testserver,localhost"
        os.environ["DJANGO_SETTINGS_MODULE"] = "portal.settings"
        import django

        django.setup()
        from portal.memory import settle

        settle()
        for found in measure(options.still, options.moving):
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
