"""Reports of many nodes take as few statements as those of two, after a change of the service."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from scheduling.clusters.models import Node
from scheduling.clusters.services import node_contact
from scheduling.enums import NodeState
from scheduling.runs.models import Member
from tests.factories.scheduling import NOW, make_two_tenants, start, submit
from workers.services import reconcile
from workers.services.node_reports import ContactBack, Renewed

pytestmark = pytest.mark.django_db
LATER = NOW + timedelta(minutes=1)


def make_ready_nodes(count: int) -> list[int]:
    rows = Node.objects.bulk_create(
        Node(
            name=f"many-{number}",
            host=f"10.0.1.{number}",
            state=NodeState.READY,
            contact=NodeState.READY,
            boot_id=f"boot-{number}",
            state_since=NOW,
            created_at=NOW,
        )
        for number in range(count)
    )
    return [row.pk for row in rows]


def contacts(node_ids: list[int], boot_id: str = "boot-{}") -> list[ContactBack]:
    return [
        ContactBack(node_id=node_id, boot_id=boot_id.format(number))
        for number, node_id in enumerate(node_ids)
    ]


def count_statements(news: list[ContactBack]) -> int:
    with CaptureQueriesContext(connection) as asked:
        ContactBack.write_all(news, LATER)
    return len(asked)


def test_nodes_that_were_always_in_contact_take_a_fixed_number_of_statements() -> None:
    node_ids = make_ready_nodes(40)

    assert count_statements(contacts(node_ids)) == count_statements(contacts(node_ids[:2]))
    assert set(Node.objects.filter(pk__in=node_ids).values_list("last_contact_at", "state")) == {
        (LATER, NodeState.READY)
    }


def test_a_node_that_was_away_or_has_restarted_is_written_by_itself() -> None:
    away, restarted, same = make_ready_nodes(3)
    node_contact.contact_lost(node_id=away, reason="no answer", now=NOW)

    ContactBack.write_all(
        [
            ContactBack(node_id=away, boot_id="boot-0"),
            ContactBack(node_id=restarted, boot_id="another"),
            ContactBack(node_id=same, boot_id="boot-2"),
        ],
        LATER,
    )

    found = Node.objects.in_bulk([away, restarted, same])
    assert [found[pk].contact for pk in (away, restarted, same)] == [NodeState.READY] * 3
    assert found[away].contact_reason == ""
    assert found[restarted].boot_id == "another"
    assert {row.last_contact_at for row in found.values()} == {LATER}


def test_renewals_of_several_nodes_are_one_statement() -> None:
    make_two_tenants()
    jobs = submit(devices=8), submit("bob", devices=8)
    start(*jobs)
    members = list(Member.objects.order_by("pk"))

    with CaptureQueriesContext(connection) as asked:
        Renewed.write_all(
            [Renewed(node_id=member.node_id, member_ids=[member.pk]) for member in members], LATER
        )

    assert len(members) == 2
    assert len(asked) == 1
    assert set(Member.objects.values_list("lease_renewed_at", flat=True)) == {LATER}


def test_the_comparison_of_a_node_without_members_is_one_statement() -> None:
    (node_id,) = make_ready_nodes(1)

    with CaptureQueriesContext(connection) as asked:
        assert reconcile.expected_members(node_id=node_id) == []

    assert len(asked) == 1
