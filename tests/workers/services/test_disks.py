"""Alarms about disks that are almost full: raised once, told to admins, ended with enough room."""

from datetime import timedelta
from typing import Any

import pytest

from scheduling.clusters.models import Node
from scheduling.core.notices import mail_text, subject_of
from scheduling.notices.models import Delivery, Notice
from scheduling.notices.services import outbox
from scheduling.notices.services.webhooks import create_hook
from tenants.models import User
from tenants.roles import Role
from tests.factories.cluster import NOW, make_cluster
from tests.factories.tenants import make_tenant, make_user, make_viewer
from workers.models import DiskAlarm, Heartbeat
from workers.services import disks
from workers.services.node_reports import Read
from workers.transports.base import NodeLoad

pytestmark = pytest.mark.django_db

GIB = 1 << 30
TOTAL = 100 * GIB
FULL, BETWEEN, ENOUGH = 4 * GIB, 6 * GIB, 7 * GIB


@pytest.fixture
def node() -> Node:
    return make_cluster(nodes=1)[0]


def read(node: Node, *free: int | None, at: Any = NOW) -> None:
    readings = tuple(
        NodeLoad(disk_free_bytes=one, disk_total_bytes=None if one is None else TOTAL)
        for one in free
    )
    Read(node_id=node.pk, readings=readings, at=at).write(at)


def beat(host: str, free: int, *, process: str = "", at: Any = NOW) -> None:
    Heartbeat.objects.update_or_create(
        process=process or f"web@{host}:1",
        defaults={
            "kind": "web", "pid": 1, "host": host, "started_at": at, "at": at,
            "disk_free_bytes": free, "disk_total_bytes": TOTAL,
        },
    )  # fmt: skip


def told() -> list[tuple[str, str]]:
    """Event and name of what was put, in order."""
    return [
        (notice.event, (notice.facts.get("node") or notice.facts["host"])["name"])
        for notice in Notice.objects.unscoped().order_by("pk")
    ]


def test_a_node_is_told_of_once_and_again_after_it_had_room(node: Node) -> None:
    for minute, free in enumerate([ENOUGH, FULL, FULL, BETWEEN, FULL, ENOUGH, BETWEEN, FULL]):
        read(node, free, at=NOW + timedelta(minutes=minute))

    assert told() == [("node.disk", node.name)] * 2
    assert DiskAlarm.objects.get().since == NOW + timedelta(minutes=7)


def test_the_newest_reading_counts_and_a_node_that_says_nothing_has_no_alarm(node: Node) -> None:
    read(node, FULL, ENOUGH)
    read(node, None, at=NOW + timedelta(minutes=1))
    assert told() == []

    read(node, ENOUGH, FULL, None, at=NOW + timedelta(minutes=2))
    assert told() == [("node.disk", node.name)]


def test_a_host_is_told_of_once_whatever_its_processes_and_the_others_are_not() -> None:
    beat("a", FULL)
    beat("a", FULL, process="rounds@a:2")
    beat("b", ENOUGH)
    beat("c", FULL, at=NOW - timedelta(minutes=5))  # nobody lives there

    assert [disks.look_at_hosts(now=NOW) for _ in range(3)] == [1, 0, 0]
    assert told() == [("host.disk", "a")]

    beat("a", ENOUGH, at=NOW + timedelta(seconds=1))
    disks.look_at_hosts(now=NOW + timedelta(seconds=2))
    assert not DiskAlarm.objects.exists()


def test_admins_get_a_mail_and_the_clusters_hooks_a_request(node: Node) -> None:
    root = make_user("root", is_cluster_admin=True)
    User.objects.filter(pk=root.pk).update(email="root@example.org")
    make_tenant("vision", alice=Role.LEAD)
    create_hook(
        viewer=make_viewer("root"),
        name="pager",
        tenant_id=None,
        url="https://p.example.org/",
        events=["node.disk", "host.disk"],
        now=NOW,
    )
    read(node, FULL)
    beat("a", FULL)
    disks.look_at_hosts(now=NOW)

    outbox.create_deliveries(now=NOW, sends_mail=True, base_url="https://t.example.org")

    rows = Delivery.objects.order_by("pk")
    assert {(row.event, row.user_id, row.hook_id is None) for row in rows} == {
        ("node.disk", root.pk, True), ("host.disk", root.pk, True),
        ("node.disk", None, False), ("host.disk", None, False),
    }  # fmt: skip
    bodies = {row.event: row.body for row in rows}
    assert bodies["node.disk"]["url"] == f"https://t.example.org/nodes/{node.pk}/"
    assert subject_of(bodies["node.disk"]) == f"Disk of node {node.name} is almost full"
    assert subject_of(bodies["host.disk"]) == "Disk of host a is almost full"
    assert f"disk free bytes: {FULL}" in mail_text(bodies["host.disk"])
