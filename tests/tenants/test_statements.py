"""Statements that are kept ask anew each time, and answer as the query that they were made of."""

import pytest
from django.db import connection
from django.db.models import QuerySet
from django.test.utils import CaptureQueriesContext

from tenants.models import Membership
from tenants.roles import Role
from tenants.statements import Statement
from tenants.tenancy import UnscopedQueryError
from tests.factories.tenants import make_tenant, make_user

pytestmark = pytest.mark.django_db


def memberships(user_id: int) -> QuerySet:
    rows = Membership.objects.unscoped().filter(user_id=user_id).order_by("tenant__name")
    return rows.values_list("tenant__name", "role")


def test_a_kept_statement_answers_each_number_with_the_rows_as_they_are_now():
    alice, bob = make_user("alice"), make_user("bob")
    make_tenant("vision", alice=Role.LEAD, bob=Role.VIEWER)
    statement = Statement(memberships)

    before = [statement.rows(user.pk) for user in (alice, bob)]
    make_tenant("language", bob=Role.LEAD)
    with CaptureQueriesContext(
        connection,
    ) as queries:
        after = [statement.rows(user.pk) for user in (alice, bob)]

    assert before == [[("vision", Role.LEAD)], [("vision", Role.VIEWER)]]
    assert after == [before[0], [("language", Role.LEAD), *before[1]]]
    assert after == [list(memberships(user.pk)) for user in (alice, bob)]
    assert len(queries) == 2


def test_a_statement_stands_around_the_query():
    alice = make_user("alice")
    make_tenant("vision", alice=Role.LEAD)
    make_tenant("language", alice=Role.LEAD)

    counted = Statement(memberships, around="SELECT COUNT(*) FROM ({}) AS counted")

    assert counted.rows(alice.pk) == [(2,)]


def test_a_statement_over_rows_of_tenants_says_for_whom():
    forgotten = Statement(lambda user_id: Membership.objects.filter(user_id=user_id))

    with pytest.raises(UnscopedQueryError):
        forgotten.rows(1)
