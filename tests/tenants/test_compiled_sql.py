"""Compiled queries read the present rows, and return what the query of Django returns."""

from datetime import UTC, datetime, timedelta
from typing import Final

import pytest
from django.db import connection
from django.db.models import QuerySet
from django.test.utils import CaptureQueriesContext

from tenants.compiled_sql import CompiledQuery
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


def test_each_number_gets_its_present_rows():
    alice, bob = make_user("alice"), make_user("bob")
    make_tenant("vision", alice=Role.LEAD, bob=Role.VIEWER)
    query = CompiledQuery(memberships)

    before = [query.rows(user.pk) for user in (alice, bob)]
    make_tenant("language", bob=Role.LEAD)
    with CaptureQueriesContext(
        connection,
    ) as queries:
        after = [query.rows(user.pk) for user in (alice, bob)]

    assert before == [[("vision", Role.LEAD)], [("vision", Role.VIEWER)]]
    assert after == [before[0], [("language", Role.LEAD), *before[1]]]
    assert after == [list(memberships(user.pk)) for user in (alice, bob)]
    assert len(queries) == 2


def test_a_query_over_rows_of_tenants_needs_a_scope():
    forgotten = CompiledQuery(lambda user_id: Membership.objects.filter(user_id=user_id))

    with pytest.raises(UnscopedQueryError):
        forgotten.rows(1)


def test_a_text_is_a_parameter_too():
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


def test_values_are_converted_as_by_django():
    make_token(make_user("alice"), expires_at=NOW + timedelta(days=1))

    def tokens(prefix: object) -> QuerySet:
        rows = ApiToken.objects.filter(prefix=prefix)
        return rows.values_list("scopes", "expires_at", "revoked_at", "user__is_active")

    (values,) = CompiledQuery(tokens).values(PREFIX)

    assert values == tuple(tokens(PREFIX).get())
    assert values == (["jobs:read"], NOW + timedelta(days=1), None, True)


def make_token(user: User, **columns: object) -> ApiToken:
    return ApiToken.objects.create(
        user=user, name="t", prefix=PREFIX, digest="d", scopes=["jobs:read"], **columns
    )
