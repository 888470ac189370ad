"""Who carries a node when the clocks of hosts, or what they have written, differ."""

from datetime import datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from pytest_django import DjangoAssertNumQueries

from scheduling.clusters.models import Node
from scheduling.enums import NodeState
from tests.factories.cluster import NOW, make_cluster
from workers.models import Heartbeat, NodeBackoff, NodeLease
from workers.services import heartbeats, node_leases
from workers.services.reach import Silence

pytestmark = pytest.mark.django_db
LEASE = timedelta(seconds=15)
HOURS = timedelta(hours=2)


def claim(owner: str, now: datetime = NOW) -> list[int]:
    taken = node_leases.claim_nodes(owner=owner, carried=(), now=now, lease=LEASE, fresh=LEASE)
    return sorted(taken)


def beat(owner: str, at: datetime = NOW, refusal: str = "") -> None:
    heartbeats.beat(process=owner, kind=node_leases.SERVICE_KIND, now=at, refusal=refusal)


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
    beat("skewed", refusal=node_leases.CLOCK_SKEW)

    assert claim("other") == all_nodes()


def test_a_living_service_has_its_share() -> None:
    make_cluster(nodes=4)
    beat("first")

    assert len(claim("other")) == 2


def test_a_service_that_could_not_renew_in_time_holds_on_until_another_takes_over() -> None:
    make_cluster(nodes=1)
    (node_id,) = claim("first")
    later = NOW + 2 * LEASE

    kept = node_leases.hold(owner="first", epochs={node_id: 1}, now=later, lease=LEASE)
    claim("other", later + 2 * LEASE)
    lost = node_leases.hold(owner="first", epochs={node_id: 1}, now=later, lease=LEASE)

    assert (kept, lost) == (frozenset({node_id}), frozenset())


UNTIL = NOW + timedelta(seconds=60)


def unreached_by(owner: str, *node_ids: int, silent_since: datetime | None = None) -> None:
    for node_id in node_ids:
        node_leases.back_off(
            owner=owner, node_id=node_id, now=NOW, until=UNTIL, silent_since=silent_since
        )


def test_nodes_that_a_service_cannot_reach_are_taken_by_the_other_beyond_its_share() -> None:
    make_cluster(nodes=4)
    beat("first")
    taken = claim("other")
    assert len(taken) == 2
    beat("other")
    lost = claim("first")

    unreached_by("first", *lost)

    assert claim("first") == []
    found = node_leases.claim_nodes(
        owner="other", carried=taken, now=NOW, lease=LEASE, fresh=LEASE
    )
    assert sorted(found) == lost


def test_a_service_that_may_be_cut_off_gets_no_nodes_until_its_lost_ones_are_down() -> None:
    make_cluster(nodes=4)
    (lost, *_) = claim("first")
    beat("first")
    beat("other")

    def given() -> list[int]:
        return node_leases.surplus(owner="other", carried=all_nodes(), now=NOW, fresh=LEASE)

    unreached_by("first", lost)
    node_leases.release(owner="first", node_ids=all_nodes(), now=NOW)
    assert given() == []
    assert claim("first") == []
    Node.objects.filter(pk=lost).update(contact=NodeState.DOWN)
    assert len(given()) == 1
    assert lost not in given()
    assert len(claim("first")) == 2


def test_a_node_that_nobody_else_can_carry_is_taken_again() -> None:
    make_cluster(nodes=1)
    (node_id,) = claim("first")
    unreached_by("first", node_id)

    assert claim("first") == [node_id]
    assert not NodeBackoff.objects.exists()


def test_a_backoff_ends_with_its_time() -> None:
    make_cluster(nodes=1)
    (node_id,) = claim("first")
    unreached_by("first", node_id)
    before = UNTIL - timedelta(seconds=1)

    beat("other", before)
    assert claim("first", before) == []
    beat("other", UNTIL)
    assert claim("first", UNTIL) == [node_id]


def test_a_node_is_left_to_others_only_if_one_of_them_may_reach_it() -> None:
    make_cluster(nodes=2)
    first, second = claim("first")
    silences = {first: Silence(9.0, 8.0), second: Silence(7.9, 8.0)}

    def left(living: set[str]) -> list[int]:
        found = node_leases.unreached(owner="first", silences=silences, living=living, now=NOW)
        return sorted(found)

    assert left({"other"}) == [first]
    assert left(set()) == []
    unreached_by("other", first)
    assert left({"other"}) == []
    assert left({"other", "third"}) == [first]


def test_the_next_service_goes_on_counting_a_noted_silence() -> None:
    make_cluster(nodes=2)
    first, second = claim("first")
    unreached_by("first", first, silent_since=NOW - timedelta(seconds=9))
    unreached_by("first", second)

    later = NOW + timedelta(seconds=1)
    taken = node_leases.claim_nodes(owner="other", carried=(), now=later, lease=LEASE, fresh=LEASE)
    assert {node_id: claim.silent for node_id, claim in taken.items()} == {
        first: 10.0,
        second: None,
    }


def test_a_service_that_takes_a_node_back_goes_on_counting_its_silence() -> None:
    make_cluster(nodes=1)
    (node_id,) = claim("first")
    unreached_by("first", node_id, silent_since=NOW - timedelta(seconds=9))

    later = NOW + timedelta(seconds=1)
    taken = node_leases.claim_nodes(owner="first", carried=(), now=later, lease=LEASE, fresh=LEASE)
    assert taken[node_id].silent == 10.0


def test_an_extended_backoff_keeps_its_silence_and_a_node_claimed_meanwhile_its_lease() -> None:
    make_cluster(nodes=1)
    (node_id,) = claim("first")
    unreached_by("first", node_id, silent_since=NOW)
    longer = UNTIL + timedelta(seconds=60)

    def extend() -> None:
        node_leases.extend_backoff(owner="first", node_id=node_id, now=NOW, until=longer)

    extend()
    row = NodeBackoff.objects.get()
    assert (row.until, row.silent_since) == (longer, NOW)

    assert claim("first") == [node_id]
    extend()
    assert NodeLease.objects.get().owner == "first"
    assert not NodeBackoff.objects.exists()


def test_the_statements_of_a_claim_do_not_depend_on_the_number_of_nodes(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    make_cluster(nodes=2)
    with CaptureQueriesContext(connection) as few:
        assert len(claim("first")) == 2
    Node.objects.bulk_create(
        Node(name=f"more-{n}", host=f"10.0.0.{n}", state_since=NOW, created_at=NOW)
        for n in range(40)
    )

    with django_assert_num_queries(len(few)):
        assert len(claim("second")) == 40


def test_two_services_share_new_nodes_although_both_want_the_same() -> None:
    make_cluster(nodes=4)
    beat("first")
    beat("second")
    nodes = all_nodes()

    first = node_leases.claim_nodes(owner="first", carried=(), now=NOW, lease=LEASE, fresh=LEASE)
    second = claim("second")

    assert sorted(first) == nodes[:2]
    assert second == nodes[2:]
    assert claim("third", NOW) == []
