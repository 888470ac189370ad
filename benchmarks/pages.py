"""Server time of pages and lists, with nothing changing between two requests and with a change."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

STILL: Final = 40
MOVING: Final = 20

PAGES: Final = (
    ("overview", "/"),
    ("nodes", "/nodes/"),
    ("node", "/nodes/1/"),
    ("virtual_clusters", "/virtual-clusters/"),
    ("virtual_cluster", "/virtual-clusters/1/"),
    ("tenants", "/tenants/"),
    ("tenant", "/tenants/1/"),
    ("people", "/people/"),
    ("jobs", "/jobs/"),
    ("jobs_ended", "/jobs/?state=ended"),
    ("job", "/jobs/1/"),
    ("submit", "/submit/"),
    ("audit", "/audit/"),
    ("api_jobs", "/api/v1/jobs/"),
    ("api_jobs_of_a_user", "/api/v1/jobs/?user=user1&state=ended"),
    ("api_cluster", "/api/v1/cluster/"),
    ("api_nodes", "/api/v1/nodes/"),
    ("api_virtual_clusters", "/api/v1/virtual-clusters/"),
    ("api_rounds", "/api/v1/rounds/"),
)
"""What is measured, as a cluster admin sees it, who sees the most."""


def measure_page(
    path: str, *, between: Callable[[], None]
) -> tuple[Sequence[float], Sequence[float]]:
    """Seconds of each request: while all stays as it is, and after ``between`` each time."""
    client = _signed_in()
    _seconds(client, path)
    still = [_seconds(client, path) for _ in range(STILL)]
    moving = []
    for _ in range(MOVING):
        between()
        moving.append(_seconds(client, path))
    return still, moving


def _signed_in() -> Any:
    from django.test import Client

    from tenants.models import User

    client = Client()
    client.force_login(User.objects.get(username="root"))
    return client


def _seconds(client: Any, path: str) -> float:
    begun = time.perf_counter()
    response = client.get(path)
    seconds = time.perf_counter() - begun
    if response.status_code != 200:
        raise RuntimeError(f"{path} answered {response.status_code}")
    return seconds
