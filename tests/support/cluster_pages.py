"""Helpers of tests of cluster pages: a small cluster, and parsing of a page."""

import re
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.test import Client
from django.utils import timezone

from scheduling.clusters.models import Node, VirtualCluster
from scheduling.jobs.models import Job
from scheduling.rounds.services import rounds
from scheduling.rounds.services.evidence import store_round
from scheduling.storage.directory import DirectoryStorage
from scheduling.what_if.services import shadows
from tenants.models import Tenant
from tenants.roles import Role
from tests.factories.cluster import (
    job_document,
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.running import put_into, run_attempt
from tests.factories.scheduling import CONFIG
from tests.factories.tenants import PASSWORD, make_tenant, make_user

HTMX: dict[str, Any] = {"HX-Request": "true"}
HOSTILE = "<img src=x onerror=alert(1)> \"q\" 'a' {{ x }}"


@dataclass
class Stage:
    """Two tenants on a small cluster.

    ``vision``: alice (member), lena (lead), victor (viewer), with the virtual cluster vision-a;
    ``language``: bob (member) with language-a. ``root`` is the cluster admin. One job of each
    tenant runs, and one job of alice waits.
    """

    nodes: list[Node]
    vision: Tenant
    language: Tenant
    vision_a: VirtualCluster
    language_a: VirtualCluster
    running: Job
    foreign: Job
    waiting: Job


def make_stage(nodes: int = 3) -> Stage:
    """Create the tenants and the cluster at the current time."""
    made = make_cluster(nodes)
    now = timezone.now()
    Node.objects.update(
        last_contact_at=now - timedelta(seconds=3), probed_at=now, boot_id="boot", state_since=now
    )
    vision = make_tenant("vision", alice=Role.MEMBER, lena=Role.LEAD, victor=Role.VIEWER)
    language = make_tenant("language", bob=Role.MEMBER)
    make_user("root", is_cluster_admin=True)
    vision_a = make_virtual_cluster("vision-a", vision)
    language_a = make_virtual_cluster("language-a", language)
    make_priority_classes()
    running = _run(make_job("alice", job_document(name="train-a")), made[0], (0, 1))
    foreign = _run(
        make_job("bob", job_document(name="secret-name", virtual_cluster="language-a")),
        made[1],
        (0, 1, 2, 3),
    )
    waiting = make_job("alice", job_document(name="waits-here"))
    return Stage(made, vision, language, vision_a, language_a, running, foreign, waiting)


def store_a_round(data_dir: Path) -> None:
    """Run a round now, store it below ``data_dir``, and decide it with the shadow policies."""

    def store(number: int, reading: Any, result: Any) -> tuple[str, str, int]:
        return store_round(
            storage=DirectoryStorage(data_dir), number=number, reading=reading, result=result
        )

    done = rounds.run_round(now=timezone.now, config=CONFIG, store=store)
    shadows.decide_shadows(
        number=done.number, storage=DirectoryStorage(data_dir), now=timezone.now()
    )


def sign_in(client: Client, username: str) -> Client:
    """Return the client, signed in as a user of the stage."""
    assert client.login(username=username, password=PASSWORD)
    return client


def read(client: Client, path: str, *, status: int = 200, **headers: str) -> str:
    """Return the text of a page."""
    response = client.get(path, headers=headers or None)
    assert response.status_code == status, response.status_code
    return str(response.content.decode())


def markup_of(html: str) -> str:
    """Return a page as one line: one space between attributes, and none next to a tag."""
    return re.sub(r" ?(<[^<>]*?) ?> ?", r"\1>", re.sub(r"[ \t\n]+", " ", html))


def words_of(html: str) -> str:
    """Return a page without markup, with normalised white space."""
    text = re.sub(r"<(script|style)[^>]*>.*?</\1>", " ", html, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", text).split())


def _run(job: Job, node: Node, devices: tuple[int, ...]) -> Job:
    now = timezone.now()
    attempt = run_attempt(job, node, now=now, devices=devices)
    attempt.members.update(pid=4711, boot_id="boot", lease_renewed_at=now)
    return put_into(job, "running", now=now)
