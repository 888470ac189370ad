"""The record of every change."""

from itertools import count

import pytest
from django.db import DatabaseError, connection, transaction
from django.db.models import ProtectedError
from hypothesis import given
from hypothesis import strategies as st

from tenants.audit import (
    MASK,
    Actor,
    AuditChange,
    audit_context,
    bind_actor,
    changed,
    current_actor,
    current_request_id,
    masked,
    record,
    record_many,
)
from tenants.errors import InvalidError
from tenants.models import AppendOnlyError, AuditEntry, User
from tenants.roles import Role
from tenants.selectors import audit_page
from tests.factories.tenants import SYSTEM, make_tenant, make_viewer

BEAT = Actor.system("beat")


def entries():
    return AuditEntry.objects.unscoped()


@pytest.mark.django_db
def test_a_row_reports_who_did_what_to_which_thing_and_how_it_looked():
    vision = make_tenant("vision", alice=Role.LEAD)

    with audit_context(request_id="req-12345678"):
        entry = record(
            actor=make_viewer("alice"),
            action="tenant.update",
            obj=vision,
            before={"note": ""},
            after={"note": "hello"},
            tenant=vision,
            message="as agreed",
        )

    stored = entries().get(pk=entry.pk)
    assert (stored.actor_name, stored.action) == ("alice", "tenant.update")
    assert (stored.object_type, stored.object_id) == ("tenant", str(vision.pk))
    assert (stored.object_name, stored.tenant) == ("vision", vision)
    assert (stored.before, stored.after) == ({"note": ""}, {"note": "hello"})
    assert (stored.request_id, stored.message) == ("req-12345678", "as agreed")


@pytest.mark.django_db
@pytest.mark.parametrize(
    "alter",
    [
        lambda: entries().update(message="x"),
        lambda: entries().delete(),
        lambda: entries().bulk_update(list(entries()), ["message"]),
        lambda: entries().filter(pk=0).delete(),
        lambda: AuditEntry.objects.update(message="x"),
        lambda: entries()[0].delete(),  # noqa: PLW0108 the row is read inside the test
        lambda: entries()[0].save(),  # noqa: PLW0108 the row is read inside the test
        lambda: entries().update_or_create(action="x", defaults={"message": "y"}),
    ],
)
def test_nothing_recorded_is_changed_or_removed(alter):
    record(actor=BEAT, action="x", object_type="x")

    with pytest.raises(AppendOnlyError):
        alter()

    assert entries().get().message == ""


@pytest.mark.django_db
def test_the_database_itself_refuses_to_change_a_row():
    record(actor=BEAT, action="x", object_type="x")

    with (
        pytest.raises(DatabaseError, match="append-only"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute("UPDATE tenants_auditentry SET message = 'forged'")

    assert entries().get().message == ""


@pytest.mark.django_db
def test_who_is_named_in_the_record_cannot_be_deleted():
    vision = make_tenant("vision", alice=Role.LEAD)
    alice = User.objects.get(username="alice")
    record(actor=make_viewer("alice"), action="x", object_type="x", tenant=vision)

    with pytest.raises(ProtectedError):
        alice.delete()
    with pytest.raises(ProtectedError):
        vision.delete()


@pytest.mark.django_db
def test_a_failed_change_leaves_no_row():
    def fail():
        with transaction.atomic():
            record(actor=BEAT, action="x", object_type="x")
            raise InvalidError("no")

    with pytest.raises(InvalidError):
        fail()

    assert not entries().exists()


@pytest.mark.django_db
def test_many_changes_are_recorded_in_one_statement_and_masked_alike(django_assert_num_queries):
    tenants = [make_tenant(name) for name in ("vision", "language")]
    changes = [
        AuditChange(action="x", obj=tenant, after={"token": "t"}, tenant=tenant.pk)
        for tenant in tenants
    ]

    with audit_context(request_id="req-12345678"), django_assert_num_queries(1):
        record_many(actor=SYSTEM, changes=changes)

    rows = entries().filter(action="x").values_list("object_name", "tenant__name", "after")
    assert sorted(rows) == [(name, name, {"token": MASK}) for name in ("language", "vision")]
    assert {row.request_id for row in entries().filter(action="x")} == {"req-12345678"}


@pytest.mark.django_db
def test_the_key_0_of_what_is_no_row_is_recorded_as_any_other():
    entry = record(actor=BEAT, action="x", object_type="topology", object_id=0)

    assert entries().get(pk=entry.pk).object_id == "0"


@pytest.mark.django_db
def test_what_is_said_of_a_row_goes_before_what_it_says_of_itself():
    vision = make_tenant("vision")

    entry = record(actor=BEAT, action="x", obj=vision, object_name="what it was called")

    stored = entries().get(pk=entry.pk)
    assert (stored.object_type, stored.object_id) == ("tenant", str(vision.pk))
    assert stored.object_name == "what it was called"


@pytest.mark.django_db
def test_the_actor_of_the_request_is_used_when_none_is_named():
    with audit_context(request_id="req-12345678"):
        bind_actor(SYSTEM)
        assert record(action="x", object_type="x").actor_name == "tests"

    assert record(action="x", object_type="x").actor_name == "system"
    assert current_actor() is None
    assert current_request_id() == ""


@pytest.mark.django_db
def test_pages_follow_each_other_without_gap_or_repeat_while_rows_are_added():
    numbers = count()
    for _ in range(7):
        record(actor=BEAT, action="x", object_type="x", object_id=next(numbers))

    seen, cursor = [], None
    while True:
        page = audit_page(SYSTEM, cursor=cursor, limit=3)
        seen += [row.object_id for row in page.rows]
        record(actor=BEAT, action="x", object_type="x", object_id=next(numbers))
        cursor = page.next_cursor
        if cursor is None:
            break

    assert seen == ["6", "5", "4", "3", "2", "1", "0"]


@pytest.mark.django_db
def test_the_last_page_says_that_it_is_the_last_even_when_full():
    for number in range(4):
        record(actor=BEAT, action="x", object_type="x", object_id=number)

    first = audit_page(SYSTEM, limit=2)
    last = audit_page(SYSTEM, limit=2, cursor=first.next_cursor)

    assert len(last.rows) == 2
    assert last.next_cursor is None


@pytest.mark.django_db
def test_a_page_may_be_narrowed():
    vision = make_tenant("vision", alice=Role.LEAD)

    assert {row.action for row in audit_page(SYSTEM, action="member.").rows} == {"member.add"}
    assert len(audit_page(SYSTEM, tenant_id=vision.pk).rows) == 2
    assert len(audit_page(SYSTEM, actor="tests", object_type="user").rows) == 1
    assert audit_page(SYSTEM, action="member").rows == ()
    assert audit_page(SYSTEM, object_id=str(vision.pk), object_type="tenant").rows


@pytest.mark.django_db
@pytest.mark.parametrize("cursor", ["", "-1", "x", "1;", "٣", "9" * 19, "1.0"])
def test_a_cursor_from_elsewhere_is_refused_by_name(cursor):
    with pytest.raises(InvalidError) as refusal:
        audit_page(SYSTEM, cursor=cursor)

    assert refusal.value.field == "cursor"


@pytest.mark.django_db
def test_a_page_takes_one_query(django_assert_num_queries):
    make_tenant("vision", alice=Role.LEAD)

    with django_assert_num_queries(1):
        assert [row.tenant for row in audit_page(SYSTEM).rows]


@pytest.mark.parametrize(
    "key",
    ["password", "registry_password", "apiKey", "API-KEY", "secrets", "token", "git_token",
     "aws_secret_access_key", "private_key", "Authorization", "passphrase", "digest"],
)  # fmt: skip
def test_what_reads_like_a_secret_is_masked_at_any_depth(key):
    assert masked({key: "x"}) == {key: MASK}
    assert masked({"spec": [{"env": {key: {"deep": "x"}}}]}) == {"spec": [{"env": {key: MASK}}]}


def test_what_only_sounds_like_a_secret_stays():
    plain = {"total_tokens": 7, "tokens": 3.5, "has_secret": True, "key": "x", "token_prefix": "a"}

    assert masked(plain) == plain


@pytest.mark.django_db
@given(
    values=st.dictionaries(
        st.text(max_size=5),
        st.recursive(
            st.none() | st.booleans() | st.integers(-(2**60), 2**60)
            | st.floats(-1e9, 1e9) | st.sampled_from([float("nan"), float("inf")])
            | st.text(max_size=5) | st.datetimes() | st.sampled_from(Role)
            | st.binary(max_size=3) | st.frozensets(st.integers(0, 9), max_size=3),
            lambda inner: st.lists(inner, max_size=3)
            | st.dictionaries(st.text(max_size=3), inner, max_size=3),
            max_leaves=8,
        ),
        max_size=4,
    )
)  # fmt: skip
def test_whatever_is_handed_over_can_be_stored(values):
    with transaction.atomic():
        entry = record(actor=BEAT, action="x", object_type="x", after=values)

        assert entries().get(pk=entry.pk).after == masked(values)
        transaction.set_rollback(True)


@pytest.mark.django_db
def test_text_that_no_database_takes_is_made_storable():
    entry = record(
        actor=Actor.system("a\x00b"),
        action="x",
        object_type="x",
        object_id="\ud800",
        object_name="\x00",
        message="\udfff\x00",
        after={"\x00": "\ud800", "list": ["\x00"]},
    )

    stored = entries().get(pk=entry.pk)
    assert "\x00" not in stored.actor_name + stored.message + str(stored.after)
    assert stored.object_id == "?"


def test_long_and_deep_things_are_cut():
    deep: dict[str, object] = {}
    for _ in range(50):
        deep = {"a": deep}

    cut = masked({"text": "x" * 10_000, "list": list(range(10_000)), "deep": deep})

    assert len(str(cut)) < 10_000


def test_the_difference_holds_only_what_differs():
    before = {"a": 1, "b": 2, "gone": None}
    after = {"a": 1, "b": 3, "new": None}

    assert changed(before, after) == ({"b": 2, "gone": None}, {"b": 3, "new": None})
    assert changed(before, before) == ({}, {})
