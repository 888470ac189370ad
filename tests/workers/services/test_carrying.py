"""Who carries a node when the clocks of hosts, or what they have written, differ."""

from datetime import datetime, timedelta

import pytest

from scheduling.models import Node
from tests.factories.cluster import NOW, make_cluster
from workers.models import Heartbeat, NodeLease
from workers.services import carrying, heartbeats

pytestmark = pytest.mark.django_db
LEASE = timedelta(seconds=15)
HOURS = timedelta(hours=2)


def claim(owner: str, now: datetime = NOW) -> list[int]:
    taken = carrying.claim_nodes(owner=owner, carried=(), now=now, lease=LEASE, fresh=LEASE)
    return sorted(taken)


def beat(owner: str, at: datetime = NOW, refusal: str = "") -> None:
    heartbeats.beat(process=owner, kind=carrying.SERVICE_KIND, now=at, refusal=refusal)


def all_nodes() -> list[int]:
    return sorted(Node.objects.values_list("id", flat=True))


def test_a_lease_that_ends_hours_from_now_is_broken_and_taken() -> None:
    make_cluster()
    claim("ahead", NOW + HOURS)
    Heartbeat.objects.all().delete()

    assert claim("other") == all_nodes()
    assert set(NodeLease.objects.values_list("owner", flat=True)) == {"other"}
    assert set(NodeLease.objects.values_list("epoch", flat=True)) == {2}


@pytest.mark.parametrize("early", [timedelta(0), timedelta(seconds=2)])
def test_a_lease_within_its_length_and_two_seconds_is_respected(early: timedelta) -> None:
    make_cluster()
    claim("first", NOW)

    assert claim("other", NOW - early) == []


def test_a_service_with_a_heartbeat_in_the_future_has_no_share() -> None:
    make_cluster()
    beat("ahead", NOW + HOURS)

    assert claim("other") == all_nodes()


def test_a_service_that_refuses_to_carry_nodes_has_no_share() -> None:
    make_cluster()
    beat("skewed", refusal=carrying.CLOCK_SKEW)

    assert claim("other") == all_nodes()


def test_a_living_service_has_its_share() -> None:
    make_cluster(nodes=4)
    beat("first")

    assert len(claim("other")) == 2


def test_a_service_that_could_not_renew_in_time_holds_on_until_another_takes_over() -> None:
    make_cluster(nodes=1)
    (node_id,) = claim("first")
    later = NOW + 2 * LEASE

    kept = carrying.hold(owner="first", epochs={node_id: 1}, now=later, lease=LEASE)
    claim("other", later + 2 * LEASE)
    lost = carrying.hold(owner="first", epochs={node_id: 1}, now=later, lease=LEASE)

    assert (kept, lost) == ({node_id}, frozenset())
