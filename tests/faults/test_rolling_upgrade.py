"""Two hosts are upgraded one after the other while twenty jobs run and requests arrive.

UPGRADE_FROM=COMMIT pytest -m soak tests/faults/test_rolling_upgrade.py
"""

import os
import shlex
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from portal.migration_rules import RELEASE
from tests.faults.nemesis import write_report
from tests.faults.nemesis_runs import REPORT
from tests.support.balanced_requests import Ask, BalancedRequests
from tests.support.release_trees import (
    NEXT_MIGRATION,
    can_make_trees,
    next_release,
    tree_of_commit,
)
from tests.support.two_hosts import Host, TwoHosts, can_make_hosts, manage_from, two_hosts
from tests.support.waiting import wait_until

_WHY_NOT = can_make_hosts() or can_make_trees()
pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT or "it can be done"),
]

FROM = os.environ.get("UPGRADE_FROM", "HEAD")
JOBS = 20
SECONDS = 180.0
LOOP = 'n=0; until [ -e {end} ]; do echo "line $n"; n=$((n+1)); sleep 0.2; done; echo "end $n"'


@dataclass
class Upgrade:
    """An installation of the previous release on two hosts, and the tree of the next one.

    Attributes:
        end: the jobs end when this file exists.
        figures: measured times in seconds, by step.
    """

    portal: TwoHosts
    next: Path
    end: Path
    jobs: list[int] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def submit_jobs(self) -> None:
        """Submit the jobs and wait until all run."""
        self.portal.stop_examples()
        for number in range(JOBS):
            user, cluster = (("alice", "vision-a"), ("bob", "language-a"))[number % 2]
            role = {"devices": 1, "command": LOOP.format(end=shlex.quote(str(self.end)))}
            document = {
                "name": f"upgrade-{number}", "virtual_cluster": cluster, "class": "opportunistic",
                "roles": {"worker": role},
            }  # fmt: skip
            with self.portal.client(user) as client:
                self.jobs.append(client.submit(document, idempotency_key=uuid.uuid4().hex).id)
        wait_until(lambda: self.states() == ["running"] * JOBS, SECONDS, "all jobs to run")

    def states(self) -> list[str]:
        """Return the states of the jobs."""
        rows = self.portal.rows("SELECT id, state FROM scheduling_job ORDER BY id")
        return [row["state"] for row in rows if row["id"] in self.jobs]

    def migrate(self) -> None:
        """Run ``set_up`` of the next release while the hosts run the previous one."""
        begun = time.monotonic()
        done = manage_from(self.next, self.portal.variables(), "set_up")
        assert done.returncode == 0, done.stdout + done.stderr
        self.note("set_up", begun)

    def restart(self, host: Host, tree: Path, name: str) -> None:
        """Stop a host, start it from a tree, and wait until every part works."""
        begun = time.monotonic()
        host.end()
        self.note(f"{name} ended", begun)
        host.tree = tree
        host.begin()
        wait_until(self.portal.is_ready, SECONDS, f"{host.name}, {name}", every=0.1)
        self.note(f"{name} ready", begun)
        assert self.states() == ["running"] * JOBS
        wait_until(
            lambda: all(self.portal.carriers().values()), SECONDS, "a share of nodes", every=0.1
        )
        self.note(f"{name} manages nodes", begun)

    def note(self, name: str, begun: float) -> None:
        """Note the time since ``begun``."""
        self.figures[f"{name}_s"] = round(time.monotonic() - begun, 1)

    def wait_for_ends(self) -> None:
        """Let the jobs end, and wait for it."""
        self.end.touch()
        wait_until(lambda: self.states() == ["succeeded"] * JOBS, SECONDS, "the end of all jobs")

    def log(self, job_id: int) -> str:
        """Return the whole log of a job."""
        user = "alice" if self.jobs.index(job_id) % 2 == 0 else "bob"
        text, offset = "", 0
        with self.portal.client(user) as client:
            while True:
                part = client.logs(job_id, offset=offset)
                text, offset = text + part.text, part.next_offset
                if part.end and offset >= part.size:
                    return text


@pytest.fixture
def upgrade(tmp_path: Path) -> Iterator[Upgrade]:
    previous = tree_of_commit(tmp_path / "previous", FROM)
    following = next_release(tmp_path / "next")
    shown = tmp_path / "shown"
    shown.mkdir()
    hosts = tmp_path / "hosts"
    hosts.mkdir()
    with two_hosts(hosts, tree=previous) as portal:
        portal.show_to_jobs(shown)
        yield Upgrade(portal, following, shown / "end")


def requests_of(jobs: list[int]) -> list[Ask]:
    """Reads of lists, details and logs, and submits of jobs on hold."""
    submitted = count()

    def submit(client: httpx.Client) -> httpx.Response:
        # The same key for a repetition: the number grows with success only.
        return client.post("/api/v1/jobs/", json=held, headers={"Idempotency-Key": key[0]})

    def submit_next(client: httpx.Client) -> httpx.Response:
        response = submit(client)
        if response.is_success:
            key[0] = f"upgrade-held-{next(submitted)}"
        return response

    key = ["upgrade-held"]
    held = {
        "name": "held", "virtual_cluster": "vision-a", "held": True,
        "roles": {"worker": {"devices": 1, "command": "true"}},
    }  # fmt: skip
    return [
        lambda client: client.get("/api/v1/jobs/"),
        lambda client: client.get(f"/api/v1/jobs/{jobs[0]}/"),
        lambda client: client.get(f"/api/v1/jobs/{jobs[2]}/logs/"),
        lambda client: client.get(f"/api/v1/jobs/{jobs[4]}/events/"),
        lambda client: client.get(f"/api/v1/jobs/{jobs[6]}/why/"),
        lambda client: client.get(f"/api/v1/jobs/{jobs[8]}/attempts/"),
        lambda client: client.get("/api/v1/jobs/?state=running"),
        submit_next,
    ]


def test_hosts_are_upgraded_one_after_the_other_while_jobs_run(upgrade: Upgrade) -> None:
    portal, (first, second) = upgrade.portal, upgrade.portal.hosts
    upgrade.submit_jobs()
    begun = time.monotonic()
    with BalancedRequests(
        [host.url for host in portal.hosts], portal.token("alice"), requests_of(upgrade.jobs)
    ) as requests:
        upgrade.migrate()
        wait_until(portal.is_ready, 30, "hosts of the previous release")
        upgrade.restart(second, second.tree, "previous release restarted")
        upgrade.restart(first, upgrade.next, "first host")
        upgrade.restart(second, upgrade.next, "second host")
        wait_until(lambda: len(requests.ready) == len(portal.hosts), SECONDS, "both hosts")
    upgrade.note("whole", begun)
    upgrade.wait_for_ends()

    figures = {**upgrade.figures, **requests.outcomes.figures()}
    write_report(REPORT, {"test": "rolling upgrade", **figures})
    print(figures, dict(requests.outcomes.repeated))
    assert requests.outcomes.failed == []
    assert requests.outcomes.sent > 100
    check_jobs(upgrade)
    applied = portal.rows("SELECT name FROM django_migrations WHERE app = 'scheduling'")
    assert NEXT_MIGRATION in {row["name"] for row in applied}
    (release,) = portal.rows("SELECT number, oldest FROM tenants_schemarelease")
    assert (release["number"], release["oldest"]) == (RELEASE + 1, RELEASE)


def check_jobs(upgrade: Upgrade) -> None:
    """Each job has one attempt and all lines of its log, in order and once."""
    rows = upgrade.portal.rows("SELECT job_id, number FROM scheduling_attempt ORDER BY id")
    attempts = [(row["job_id"], row["number"]) for row in rows if row["job_id"] in upgrade.jobs]
    assert sorted(attempts) == [(job_id, 1) for job_id in sorted(upgrade.jobs)]
    lines = 0
    for job_id in upgrade.jobs:
        *numbered, last = upgrade.log(job_id).splitlines()
        assert numbered == [f"line {number}" for number in range(len(numbered))], job_id
        assert last == f"end {len(numbered)}", job_id
        lines += len(numbered)
    upgrade.figures["lines"] = lines
    print({"log_lines": lines})
    assert lines > 50 * JOBS
