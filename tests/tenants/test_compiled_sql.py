"""Statements that are kept ask anew each time, and answer as the query that they were made of."""

from datetime import UTC, datetime, timedelta
from typing import Final

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.models import QuerySet
from django.test.utils import CaptureQueriesContext

from tenants.compiled_sql import CompiledInsert, CompiledQuery
from tenants.models import ApiToken, Membership, User
from tenants.roles import Role
from tenants.tenancy import UnscopedQueryError
from tests.factories.tenants import make_tenant, make_user

pytestmark = pytest.mark.django_db

NOW: Final = datetime.now(UTC)
PREFIX: Final = "abcdefgh"


def memberships(user_id: int) -> QuerySet:
    rows = Membership.objects.unscoped().filter(user_id=user_id).order_by("tenant__name")
    return rows.values_list("tenant__name", "role")


def test_a_kept_statement_answers_each_number_with_the_rows_as_they_are_now():
    alice, bob = make_user("alice"), make_user("bob")
    make_tenant("vision", alice=Role.LEAD, bob=Role.VIEWER)
    statement = CompiledQuery(memberships)

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

    counted = CompiledQuery(memberships, around="SELECT COUNT(*) FROM ({}) AS counted")

    assert counted.rows(alice.pk) == [(2,)]


def test_a_statement_over_rows_of_tenants_says_for_whom():
    forgotten = CompiledQuery(lambda user_id: Membership.objects.filter(user_id=user_id))

    with pytest.raises(UnscopedQueryError):
        forgotten.rows(1)


def test_a_kept_statement_takes_a_text_in_the_place_of_the_number():
    make_tenant("vision", alice=Role.LEAD)
    make_tenant("language", bob=Role.MEMBER)
    of_user = CompiledQuery(
        lambda name: (
            Membership.objects.unscoped().filter(user__username=name).values_list("tenant__name")
        )
    )

    assert of_user.rows("alice") == [("vision",)]
    assert of_user.rows("bob") == [("language",)]
    assert of_user.rows("-4611686018427387904") == []


def test_values_of_a_kept_statement_are_those_that_django_gives():
    make_token(make_user("alice"), expires_at=NOW + timedelta(days=1))

    def tokens(prefix: object) -> QuerySet:
        rows = ApiToken.objects.filter(prefix=prefix)
        return rows.values_list("scopes", "expires_at", "revoked_at", "user__is_active")

    (values,) = CompiledQuery(tokens).values(PREFIX)

    assert values == tuple(tokens(PREFIX).get())
    assert values == (["jobs:read"], NOW + timedelta(days=1), None, True)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_stored_rows_have_their_keys_and_are_found_as_they_were_given(count: int):
    alice = make_user("alice")
    new = [
        ApiToken(user=alice, name="t", prefix=f"abcdefg{n}", digest="d", scopes=["x", n])
        for n in range(count)
    ]

    with CaptureQueriesContext(connection) as queries:
        stored = CompiledInsert(ApiToken).store(iter(new))

    assert stored == new
    assert all(not token._state.adding for token in stored)
    found = ApiToken.objects.order_by("prefix").values()
    assert list(found) == [
        {field.attname: getattr(token, field.attname) for field in ApiToken._meta.concrete_fields}
        for token in new
    ]
    assert sum("INSERT" in query["sql"] for query in queries) == min(count, 1)


def test_a_row_that_breaks_a_rule_is_refused_as_by_django():
    alice = make_user("alice")
    insertion = CompiledInsert(ApiToken)
    make_token(alice)

    with pytest.raises(IntegrityError), transaction.atomic():
        insertion.store([ApiToken(user=alice, name="t", prefix=PREFIX, digest="d")])

    assert ApiToken.objects.count() == 1


def make_token(user: User, **columns: object) -> ApiToken:
    return ApiToken.objects.create(
        user=user, name="t", prefix=PREFIX, digest="d", scopes=["jobs:read"], **columns
    )
