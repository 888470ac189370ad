"""Devices of a job that idle while others work."""

from datetime import timedelta

import pytest

from scheduling.runs.models import Member
from tests.factories.cluster import NOW
from tests.factories.scheduling import make_two_tenants, start, submit
from workers.idle_devices import IdleDevices, idle_among, idle_devices_of
from workers.models import NodeTelemetry

M = timedelta(minutes=1)


@pytest.mark.parametrize(
    ("minutes", "found"),
    [
        ([[0.9, 0.0, 0.01, 0.0]] * 10, IdleDevices(idle=3, total=4, minutes=10)),
        ([[0.9, 0.0, 0.01, 0.0]] * 9, None),
        ([[0.0, 0.0, 0.0, 0.0]] * 10, None),
        ([[0.9, 0.5, 0.6, 0.05]] * 10, None),
        ([[0.9, None, None, None]] * 10, None),
        ([[0.9]] * 10, None),
        ([*[[0.9, 0.0, 0.5, 0.5]] * 10, [0.9, 0.8, 0.5, 0.5]], None),
        ([*[[0.9, 0.0, 0.0, 0.0]] * 10, [0.0, 0.0, 0.0, 0.0]], None),
    ],
)
def test_devices_idle_only_beside_one_that_works_throughout(
    minutes: list[list[float | None]], found: IdleDevices | None
) -> None:
    assert idle_among([(7, index) for index in range(4)], {7: minutes}) == found


def test_all_nodes_have_to_report() -> None:
    busy = [[0.9, 0.0]] * 12

    assert idle_among([(1, 0), (2, 1)], {1: busy}) is None
    assert idle_among([(1, 0), (2, 1)], {1: busy, 2: busy}) == IdleDevices(
        idle=1, total=2, minutes=12
    )


@pytest.mark.django_db
def test_the_hint_is_about_the_devices_of_the_job_in_its_running_attempt() -> None:
    make_two_tenants()
    job = submit(worker={"devices": 4})
    start(job)
    member = Member.objects.get(attempt__job=job)
    busy = [0.9] * 8
    for index in member.devices[1:]:
        busy[index] = 0.0
    NodeTelemetry.objects.bulk_create(
        NodeTelemetry(node_id=member.node_id, at=NOW + n * M, utilisation=busy) for n in range(30)
    )

    assert idle_devices_of(job.pk, now=NOW + 10 * M) is None
    found = idle_devices_of(job.pk, now=NOW + 30 * M)
    assert found == IdleDevices(idle=3, total=4, minutes=15)
