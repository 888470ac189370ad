"""Telemetry: minutes, roll-ups and retention."""

from datetime import UTC, datetime, timedelta

import pytest

from scheduling.clusters.models import Device, Node
from tests.factories.cluster import make_cluster
from workers.models import NodeTelemetry
from workers.services import telemetry
from workers.services.telemetry import current_readings
from workers.transports.base import DeviceReading, NodeLoad

pytestmark = pytest.mark.django_db
NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


@pytest.fixture
def node() -> Node:
    return make_cluster(nodes=1)[0]


def reading(*shares: float | None, load: float | None = 1.0) -> NodeLoad:
    devices = tuple(
        DeviceReading(index=index, utilisation=share, memory_bytes=100)
        for index, share in enumerate(shares)
    )
    return NodeLoad(devices=devices, load=load, memory_used_bytes=1000)


def test_a_minute_is_the_average_of_its_readings(node: Node) -> None:
    at = NOON + timedelta(seconds=42)

    telemetry.keep_minute(
        node_id=node.pk, readings=[reading(0.0, None), reading(1.0, None, load=3.0)], at=at
    )

    row = NodeTelemetry.objects.get()
    assert row.at == NOON
    assert row.utilisation == [0.5, None]
    assert (row.cpu_load, row.memory_used_bytes, row.samples) == (2.0, 1000, 2)


def test_a_minute_that_is_there_stays(node: Node) -> None:
    telemetry.keep_minute(node_id=node.pk, readings=[reading(0.0)], at=NOON)
    telemetry.keep_minute(node_id=node.pk, readings=[reading(1.0)], at=NOON)

    assert NodeTelemetry.objects.get().utilisation == [0.0]


def test_devices_that_come_later_widen_the_arrays(node: Node) -> None:
    telemetry.keep_minute(node_id=node.pk, readings=[reading(0.5), reading(0.5, 1.0)], at=NOON)

    assert NodeTelemetry.objects.get().utilisation == [0.5, 1.0]


def test_complete_spans_are_rolled_up_once(node: Node) -> None:
    for minute in range(25):
        telemetry.keep_minute(
            node_id=node.pk,
            readings=[reading(minute / 100)],
            at=NOON + timedelta(minutes=minute),
        )
    now = NOON + timedelta(minutes=25)

    written = telemetry.roll_up(now=now)
    again = telemetry.roll_up(now=now)

    rows = NodeTelemetry.objects.filter(span_seconds=600).order_by("at")
    assert (written, again) == (2, 0)
    assert [row.at for row in rows] == [NOON, NOON + timedelta(minutes=10)]
    assert rows[0].utilisation == [0.045]
    assert rows[0].samples == 10


def test_each_span_is_kept_for_its_time(node: Node) -> None:
    for span, age in ((60, 25), (60, 23), (600, 24 * 31), (600, 25), (3600, 24 * 31)):
        NodeTelemetry.objects.create(
            node=node, span_seconds=span, at=NOON - timedelta(hours=age), samples=1
        )

    deleted = telemetry.prune(now=NOON)

    assert deleted == 2
    assert NodeTelemetry.objects.count() == 3


def test_without_redis_the_newest_minute_is_what_a_node_does_now(node: Node) -> None:
    telemetry.keep_minute(node_id=node.pk, readings=[reading(0.25)], at=NOON)

    fresh = current_readings(node_ids=[node.pk], now=NOON + timedelta(minutes=1))
    stale = current_readings(node_ids=[node.pk], now=NOON + timedelta(minutes=9))

    assert fresh[node.pk]["utilisation"] == [0.25]
    assert stale == {}


def test_readings_are_by_the_numbers_of_gpus_and_not_by_the_indices_of_the_driver(
    node: Node,
) -> None:
    first, second = Device.objects.filter(node=node).order_by("index")[:2]
    for device, uuid in ((first, "GPU-a"), (second, "GPU-b")):
        device.uuid = uuid
        device.save(update_fields=["uuid"])
    found = NodeLoad(
        devices=(
            DeviceReading(index=0, uuid="GPU-b", utilisation=0.5),
            DeviceReading(index=1, uuid="GPU-new", utilisation=1.0),
        )
    )

    numbered = telemetry.numbered(found, telemetry.device_numbers(node_id=node.pk))

    assert telemetry.as_json(numbered)["utilisation"] == [None, 0.5]
