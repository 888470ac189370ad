"""Submits by REST while rounds run: single jobs for a minute, and 1,000 jobs in one call.

Run by hand: ``python -m benchmarks.submits [--seconds N] [--callers N]``; prints JSON entries.
"""

import argparse
import json
import statistics
import threading
import time
from typing import Any

import httpx

from benchmarks.entries import entry, p95
from benchmarks.site import SIZE, Site, site

DOCUMENT = {
    "name": "bench",
    "virtual_cluster": "scale-vision-a",
    "roles": {"worker": {"instances": 1, "devices": 1, "command": "python train.py"}},
}
BULK = 1_000
BULKS = 5


def measure(seconds: float, callers: int) -> list[dict[str, Any]]:
    """All entries, as in ``results/latest.json``."""
    with site(rounds=True) as found:
        key = _token()
        _raise_job_limits()
        rounds = _count_rounds()
        waits = _one_by_one(found, key, seconds, callers)
        rounds = _count_rounds() - rounds
        bulks = _in_bulk(found, key)
    context = f"REST, {callers} callers, {rounds} rounds meanwhile; {SIZE}"
    bulk = f"{BULK} jobs in one call, {BULKS} calls; {SIZE}"
    return [
        entry("submits_per_second", len(waits) / seconds, "1/s", "higher", context),
        entry("submit_median", statistics.median(waits) * 1e3, "ms", "lower", context),
        entry("submit_p95", p95(waits) * 1e3, "ms", "lower", context),
        entry("bulk_submit_median", statistics.median(bulks), "s", "lower", bulk),
        entry("bulk_submit_slowest", max(bulks), "s", "lower", bulk),
    ]


def _token() -> str:
    from django.utils import timezone

    from tenants.models import User
    from tenants.roles import Scope
    from tenants.selectors import viewer_of
    from tenants.services import issue_token

    user = User.objects.get(username="alice")
    scopes = frozenset({Scope.JOBS_READ, Scope.JOBS_WRITE})
    return issue_token(viewer=viewer_of(user), name="bench", scopes=scopes, now=timezone.now()).key


def _raise_job_limits() -> None:
    """Raise the limit of live jobs per person, for the 10,000 of the site and the bulks."""
    from scheduling.jobs.models import JobLimit
    from scheduling.jobs.services.job_limits import MOST

    JobLimit.objects.update_or_create(
        key="cluster", defaults={"per_person": MOST, "per_tenant": MOST}
    )


def _count_rounds() -> int:
    from scheduling.rounds.models import Round

    newest = Round.objects.order_by("-number").values_list("number", flat=True).first()
    return newest or 0


def _one_by_one(found: Site, key: str, seconds: float, callers: int) -> list[float]:
    """Return the seconds of each call that ended within the time."""
    waits: list[float] = []
    faults: list[str] = []
    until = time.perf_counter() + seconds

    def call() -> None:
        with _client(found, key) as client:
            while time.perf_counter() < until and not faults:
                begun = time.perf_counter()
                answer = client.post("/api/v1/jobs/", json=DOCUMENT)
                if answer.status_code != 201:
                    faults.append(f"{answer.status_code}: {answer.text[:500]}")
                elif time.perf_counter() <= until:
                    waits.append(time.perf_counter() - begun)

    threads = [threading.Thread(target=call) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise RuntimeError(faults[0])
    return waits


def _in_bulk(found: Site, key: str) -> list[float]:
    waits = []
    with _client(found, key) as client:
        for _ in range(BULKS):
            begun = time.perf_counter()
            answer = client.post("/api/v1/jobs/bulk/", json=[DOCUMENT] * BULK)
            waits.append(time.perf_counter() - begun)
            if answer.status_code != 201:
                raise RuntimeError(f"{answer.status_code}: {answer.text[:500]}")
    return waits


def _client(found: Site, key: str) -> httpx.Client:
    headers = {"Authorization": f"Token {key}"}
    return httpx.Client(base_url=found.url, headers=headers, timeout=60, trust_env=False)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--callers", type=int, default=4)
    options = parser.parse_args()
    print(json.dumps(measure(options.seconds, options.callers), indent=2))


if __name__ == "__main__":
    main()
