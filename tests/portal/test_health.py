"""``/healthz`` and ``/readyz``: without login; 503 only if the process cannot serve."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import cache
from django.db import OperationalError, connection
from django.db.migrations.recorder import MigrationRecorder
from django.test import Client

from portal import health
from portal.broker import connection as broker
from portal.heartbeats import BEAT_DUTY
from portal.migration_rules import RELEASE
from portal.web.errors import _SENTENCES
from scheduling.clusters.models import Node
from scheduling.rounds.models import Round
from tenants.clock import database_now
from tenants.models import SchemaRelease, User
from tenants.models.schema import ONLY_ID
from tests.factories.cluster import make_cluster
from tests.factories.tenants import make_user
from workers.conf import NODE_LEASE_SECONDS
from workers.models import Heartbeat, NodeLease
from workers.services import heartbeats
from workers.services.disks import least_free
from workers.services.duties import take_duty

pytestmark = pytest.mark.django_db
PARTS = ("database", "broker", "storage", "rounds", "nodes", "beat", "clock", "disk")
GIB = 1 << 30


def facts(skew: float = 0.0, free: int = 50 * GIB) -> heartbeats.HostFacts:
    return heartbeats.HostFacts(
        skew_seconds=skew, disk_free_bytes=free, disk_total_bytes=100 * GIB
    )


def beat(host: str, kind: str = "nodes", **measured: Any) -> None:
    process = f"{kind}@{host}:1"
    heartbeats.beat(process=process, kind=kind, now=database_now(), facts=facts(**measured))
    Heartbeat.objects.filter(process=process).update(host=host)


def add_round(*, age: timedelta = timedelta(0)) -> None:
    now = database_now()
    Round.objects.create(number=1, started_at=now - age, committed_at=now - age, duration_ms=1.0)


@pytest.fixture
def whole(without_broker: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A control plane of which every part works."""
    # The tests run without a broker.
    monkeypatch.setattr(broker, "has_broker", lambda: True)
    monkeypatch.setattr(broker, "broker_responds", lambda: True)


@pytest.fixture
def without_broker() -> None:
    """A control plane of which every part but the broker works."""
    make_cluster()
    now = database_now()
    for node in Node.objects.all():
        ends = now + timedelta(seconds=NODE_LEASE_SECONDS)
        NodeLease.objects.create(node=node, owner="nodes@a:1", epoch=1, expires_at=ends)
    beat("a")
    add_round()
    take_duty(name=BEAT_DUTY, owner="beat@a", now=now, state={})


def failing(client: Client, *, strict: int = 503, loose: int = 200) -> dict[str, str]:
    assert client.get("/readyz?strict=1").status_code == strict
    response = client.get("/readyz")
    assert response.status_code == loose
    parts = response.json()["parts"]
    assert tuple(parts) == PARTS
    assert all(part["ok"] == (part["detail"] == "ok") for part in parts.values())
    return {name: part["detail"] for name, part in parts.items() if not part["ok"]}


def test_healthz_succeeds_in_any_state_of_the_other_parts(client: Client) -> None:
    response = client.get("/healthz")

    assert (response.status_code, response.json()) == (200, {"status": "ok"})


def test_all_parts_work(client: Client, whole: None) -> None:
    assert failing(client, strict=200) == {}
    assert client.get("/readyz").json()["status"] == "ok"


@pytest.mark.usefixtures("without_broker")
def test_without_a_broker_the_process_serves(client: Client) -> None:
    assert failing(client) == {"broker": "unreachable"}
    assert client.get("/readyz").json()["status"] == "degraded"


def test_before_the_first_round(client: Client, whole: None) -> None:
    Round.objects.all().delete()

    assert failing(client) == {"rounds": "none-yet"}


@pytest.mark.parametrize(("seconds", "late"), [(25, False), (31, True)])
def test_a_round_counts_for_three_intervals(
    client: Client, whole: None, seconds: int, late: bool
) -> None:
    Round.objects.all().delete()
    add_round(age=timedelta(seconds=seconds))

    assert failing(client, strict=503 if late else 200) == ({"rounds": "late"} if late else {})


def test_a_node_with_an_expired_lease_has_no_service(client: Client, whole: None) -> None:
    NodeLease.objects.filter(node__name="node-1").update(expires_at=database_now())

    assert failing(client) == {"nodes": "not-carried"}


def test_a_node_whose_lease_ends_in_hours_has_no_service(client: Client, whole: None) -> None:
    NodeLease.objects.update(expires_at=database_now() + timedelta(hours=2))

    assert failing(client) == {"nodes": "not-carried"}


def test_without_nodes_none_must_be_carried(client: Client, whole: None) -> None:
    Node.objects.all().delete()
    Heartbeat.objects.all().delete()

    assert failing(client, strict=200) == {}


def test_without_an_active_beat(client: Client, whole: None) -> None:
    take_duty(name=BEAT_DUTY, owner="beat@a", now=database_now() - timedelta(hours=1), state={})

    found = client.get("/readyz").json()["parts"]["beat"]

    assert failing(client) == {"beat": "no-beat"}
    assert found["since"] is not None


@pytest.mark.parametrize("skew", [7200.0, -7200.0, 2.1])
def test_a_host_with_a_wrong_clock(client: Client, whole: None, skew: float) -> None:
    beat("b", skew=skew)

    assert failing(client) == {"clock": "clock-skew"}


def test_a_host_with_little_room(client: Client, whole: None) -> None:
    beat("b", free=4 * GIB)

    assert failing(client) == {"disk": "almost-full"}


@pytest.mark.parametrize(
    ("total", "least"),
    [(100 * GIB, 5 * GIB), (4000 * GIB, 10 * GIB), (8 * GIB, 0.5 * GIB), (64 << 20, 6.4 * 2**20)],
)
def test_how_much_room_is_enough(total: int, least: float) -> None:
    assert least_free(total) == pytest.approx(least)


def test_without_a_database_it_cannot_serve(client: Client, whole: None) -> None:
    def away(*_: object) -> None:
        raise OperationalError("the server closed the connection")

    with connection.execute_wrapper(away):
        found = failing(client, loose=503)

    assert found["database"] == "unreachable"
    assert set(found) == set(PARTS) - {"broker", "storage"}


@pytest.mark.parametrize("name", ["0002_audit_append_only", "9999_newer"])
def test_with_a_database_of_another_version_it_cannot_serve(
    client: Client, whole: None, name: str
) -> None:
    MigrationRecorder(connection).record_applied("tenants", name)

    assert failing(client, loose=503) == {"database": "other-version"}

    def lacks_a_column(execute: Any, sql: str, *rest: Any) -> Any:
        if "workers_heartbeat" in sql:
            raise OperationalError("no such column: skew_seconds")
        return execute(sql, *rest)

    with connection.execute_wrapper(lacks_a_column):
        assert failing(client, loose=503)["database"] == "other-version"


@pytest.mark.parametrize(
    ("oldest", "found"), [(RELEASE, {}), (RELEASE + 1, {"database": "other-version"})]
)
def test_a_host_serves_while_the_next_release_has_migrated(
    client: Client, whole: None, oldest: int, found: dict[str, str]
) -> None:
    MigrationRecorder(connection).record_applied("tenants", "9999_newer")
    # A flushed test database has no row.
    SchemaRelease.objects.update_or_create(
        id=ONLY_ID, defaults={"number": RELEASE + 1, "oldest": oldest}
    )

    status = 503 if found else 200
    assert failing(client, strict=status, loose=status) == found


def test_before_the_migrations_of_this_version_it_cannot_serve(
    client: Client, whole: None
) -> None:
    recorded = MigrationRecorder(connection).migration_qs.filter(app="tenants")
    recorded.filter(name=max(recorded.values_list("name", flat=True))).delete()

    assert failing(client, loose=503) == {"database": "not-migrated"}


def test_admins_alone_see_failing_parts_and_remedies(client: Client, whole: None) -> None:
    beat("gpu-b", skew=7200.0)
    make_user("root", is_cluster_admin=True)
    make_user("alice")

    for name, reads in (("root", True), ("alice", False)):
        cache.delete(health.CACHE_KEY)
        client.force_login(_user(name))
        page = client.get("/").content.decode()
        assert ("The clock of gpu-b differs from the database clock" in page) is reads, name


def test_each_failing_part_has_a_sentence() -> None:
    source = Path(health.__file__).read_text()
    codes = set(re.findall(r'detail=.*?"([a-z-]+)"', source)) | {"clock-skew", "almost-full"}
    codes |= health.STORAGE_FAULTS

    assert codes == {code for _, code in _SENTENCES}


def test_metrics_show_each_part_and_host_to_admins(client: Client, whole: None) -> None:
    beat("gpu-b", skew=7200.0, free=4 * GIB)
    make_user("root", is_cluster_admin=True)
    client.force_login(_user("root"))

    text = client.get("/metrics").content.decode()

    assert 'tessera_part_ok{part="clock"} 0' in text
    assert 'tessera_part_ok{part="nodes"} 1' in text
    assert 'tessera_host_clock_skew_seconds{host="gpu-b"} 7200' in text
    assert f'tessera_data_disk_free_bytes{{host="gpu-b"}} {4 * GIB}' in text


def _user(name: str) -> User:
    return User.objects.get(username=name)
