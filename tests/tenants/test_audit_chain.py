"""The hash chain over the audit: what it finds, on both kinds of database."""

import io
import math
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import datetime, timedelta

import pytest
from django.core.management import call_command
from django.db import DatabaseError, connection, transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenants.audit import Actor, AuditChange, record, record_many
from tenants.audit_chain import GENESIS, Head, canonical, extend_chain, head, verify
from tenants.engines.chaining import BeforeCommit
from tenants.errors import InvalidError
from tenants.models import AuditAnchor, AuditEntry, AuditLink
from tenants.services import prune_audit
from tests.factories.tenants import NOW, make_tenant
from tests.support.databases import at_once, migrated_template, real_database

__all__ = ["migrated_template", "real_database"]

pytestmark = pytest.mark.usefixtures("real_database")

BEAT = Actor.system("beat")
TRIGGERS = ("auditentry_append_only", "auditentry_kept", "auditlink_kept", "auditlink_append_only")


def note(text: str = "x", *, at: datetime | None = None) -> AuditEntry:
    """A linked row, of a time that has passed where one is given."""
    if at is None:
        return record(actor=BEAT, action="x", object_type="x", message=text)
    with transaction.atomic():
        entry = AuditEntry.objects.create(
            at=at, actor_name="x", action="x", object_type="x", message=text
        )
        transaction.on_commit(BeforeCommit(extend_chain, entry))
    return entry


def sql(*statements: str) -> None:
    """What somebody does who has the database and its owner's rights, triggers or not."""
    with transaction.atomic(), connection.cursor() as cursor:
        for name in TRIGGERS:
            table = name.partition("_")[0]
            on = "" if connection.vendor == "sqlite" else f" ON tenants_{table}"
            cursor.execute(f"DROP TRIGGER IF EXISTS tenants_{name}{on}")
        if connection.vendor == "sqlite":
            for table in ("auditentry", "auditlink", "auditanchor"):
                cursor.execute(f"DROP TRIGGER IF EXISTS tenants_{table}_not_replaced")
        for statement in statements:
            cursor.execute(statement)


def verified(*arguments: str) -> tuple[int, str]:
    """Exit status and output of the command."""
    said = io.StringIO()
    try:
        call_command("verify_audit", *arguments, stdout=said)
    except SystemExit as ended:
        return int(ended.code or 0), said.getvalue()
    return 0, said.getvalue()


COLUMNS = (
    "at, actor_id, actor_name, token_prefix, action, object_type, object_id, object_name, "
    "tenant_id, before, after, request_id, message"
)
LINK = "(position, hash, entry_id)"


def tampering(keys: list[int]) -> dict[str, tuple[list[str], int]]:
    """Ways to tamper with ten rows, and the first row that is named."""
    third, fourth, last = keys[2], keys[3], keys[-1]
    entries, links = "tenants_auditentry", "tenants_auditlink"
    copy = f"INSERT INTO {entries} ({COLUMNS}) SELECT {COLUMNS} FROM {entries} WHERE id = {third}"
    return {
        "changed": ([f"UPDATE {entries} SET message = 'forged' WHERE id = {third}"], third),
        "changed actor": ([f"UPDATE {entries} SET actor_name = 'bob' WHERE id = {third}"], third),
        "changed time": ([f"UPDATE {entries} SET at = '2020-01-01' WHERE id = {third}"], third),
        "deleted": ([f"DELETE FROM {entries} WHERE id = {third}"], third),
        "deleted last": ([f"DELETE FROM {entries} WHERE id = {last}"], last),
        "deleted with link": (
            [
                f"DELETE FROM {entries} WHERE id = {third}",
                f"DELETE FROM {links} WHERE entry_id = {third}",
            ],
            fourth,
        ),
        "inserted": ([copy], last + 1),
        "reordered": (
            [
                f"UPDATE {entries} SET id = 999 WHERE id = {third}",
                f"UPDATE {entries} SET id = {third} WHERE id = {fourth}",
                f"UPDATE {entries} SET id = {fourth} WHERE id = 999",
            ],
            third,
        ),
        "reordered links": (
            [
                f"UPDATE {links} SET position = 999 WHERE entry_id = {third}",
                f"UPDATE {links} SET position = 3 WHERE entry_id = {fourth}",
                f"UPDATE {links} SET position = 4 WHERE entry_id = {third}",
            ],
            fourth,
        ),
    }


@pytest.mark.parametrize("way", tampering(list(range(10))))
def test_each_way_of_tampering_is_found_and_the_first_row_named(way: str) -> None:
    keys = [note(f"row {number}").pk for number in range(10)]
    assert verified() == (0, f"The audit log is intact. Head {head()}\n")
    statements, first = tampering(keys)[way]

    sql(*statements)

    status, said = verified()
    assert status == 1
    assert said.startswith(f"Audit row {first} was {way.split(maxsplit=1)[0]}:"), said


def test_rows_cut_from_the_end_are_found_with_a_published_head() -> None:
    keys = [note().pk for _ in range(5)]
    published = str(head())
    sql(
        f"DELETE FROM tenants_auditentry WHERE id >= {keys[3]}",
        f"DELETE FROM tenants_auditlink WHERE entry_id >= {keys[3]}",
    )

    assert verified()[0] == 0
    status, said = verified("--head", published)
    assert (status, "ends at link 3" in said) == (1, True)


def test_a_chain_that_was_forged_from_some_row_on_is_found_with_a_published_head() -> None:
    keys = [note().pk for _ in range(5)]
    published = head()
    sql(
        f"UPDATE tenants_auditentry SET message = 'forged' WHERE id = {keys[3]}",
        "DELETE FROM tenants_auditlink WHERE position > 3",
    )
    with transaction.atomic():
        extend_chain(
            transaction.get_connection(), AuditEntry._base_manager.filter(pk__gte=keys[3])
        )

    assert verify() is None
    broken = verify(published)
    assert broken is not None
    assert broken.what == "changed"
    note()
    assert verified("--head", str(published))[0] == 1


def test_a_head_that_was_published_earlier_stays_valid() -> None:
    note()
    published = str(head())
    note()

    assert verified("--head", published)[0] == 0


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE tenants_auditentry SET message = 'forged'",
        "DELETE FROM tenants_auditentry",
        "UPDATE tenants_auditlink SET hash = 'forged'",
        "DELETE FROM tenants_auditlink",
        "INSERT INTO tenants_auditanchor (position, hash, before, at) "
        "VALUES (99, 'x', '2100-01-01', '2100-01-01')",
    ],
)
def test_the_database_refuses_to_change_and_to_remove(statement: str) -> None:
    note()

    with (
        pytest.raises(DatabaseError, match=r"append-only|last day"),
        connection.cursor() as cursor,
    ):
        cursor.execute(statement)

    assert verify() is None


def test_a_row_is_not_replaced_by_another_of_its_key() -> None:
    key = note().pk
    if connection.vendor != "sqlite":
        pytest.skip("only SQLite has INSERT OR REPLACE")

    for statement in (
        f"INSERT OR REPLACE INTO tenants_auditentry (id, {COLUMNS}) "
        f"SELECT {key}, {COLUMNS} FROM tenants_auditentry WHERE id = {key}",
        f"INSERT OR REPLACE INTO tenants_auditlink {LINK} VALUES (1, 'x', {key})",
        f"INSERT OR REPLACE INTO tenants_auditlink {LINK} VALUES (2, 'x', {key})",
    ):
        with (
            pytest.raises(DatabaseError, match="append-only"),
            connection.cursor() as cursor,
        ):
            cursor.execute(statement)

    assert verify() is None


@pytest.mark.parametrize("table", ["auditentry", "auditlink", "auditanchor"])
def test_the_database_refuses_to_truncate(table: str) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has no TRUNCATE")
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE tenants_{table}")  # nothing is in it
    note()
    link = AuditLink.objects.get()
    AuditAnchor.objects.create(position=9, hash=link.hash, before=NOW - timedelta(days=2))

    for statement in (f"TRUNCATE tenants_{table}", f"TRUNCATE tenants_{table} CASCADE"):
        with (
            pytest.raises(DatabaseError, match="append-only"),
            connection.cursor() as cursor,
        ):
            cursor.execute(statement)

    assert AuditEntry._base_manager.count() == AuditLink.objects.count() == 1


def test_verification_neither_waits_for_a_writer_nor_holds_one_up() -> None:
    note()
    if connection.vendor != "sqlite":
        pytest.skip("PostgreSQL's readers take no lock of writers")
    with closing(sqlite3.connect(connection.settings_dict["NAME"])) as writer:
        writer.execute("BEGIN IMMEDIATE")
        verified_meanwhile = at_once(lambda: verified()[0])
        writer.rollback()

    assert verified_meanwhile == [0]
    with transaction.atomic():  # the usual mode is back
        note()
    assert verify() is None


def test_rows_recorded_at_once_make_one_chain() -> None:
    make_tenant("vision")

    def write(name: str) -> Callable[[], object]:
        def act() -> None:
            for number in range(10):
                note(f"{name} {number}")

        return act

    outcomes = at_once(*(write(name) for name in "abcd"))

    assert outcomes == [None] * 4
    assert verify() is None
    assert head().position == AuditEntry._base_manager.count()


def test_transactions_that_wait_for_each_others_rows_do_not_deadlock_over_the_chain() -> None:
    vision, language = make_tenant("vision"), make_tenant("language")

    def change(*tenants) -> Callable[[], object]:
        def act() -> None:
            for _ in range(5):
                with transaction.atomic():
                    note()
                    for tenant in sorted(tenants, key=lambda one: one.pk):
                        type(tenant).objects.unscoped().filter(pk=tenant.pk).update(note="x")

        return act

    outcomes = at_once(change(vision, language), change(language), change(vision))

    assert outcomes == [None] * 3
    assert verify() is None


def test_what_is_rolled_back_is_not_linked() -> None:
    def fail() -> None:
        with transaction.atomic():
            note("in a savepoint")
            raise InvalidError("no")

    with transaction.atomic():
        note("before")
        with pytest.raises(InvalidError):
            fail()
        record_many(
            actor=BEAT,
            changes=[
                AuditChange(action="x", obj=make_tenant(name)) for name in ("vision", "language")
            ],
        )
    with pytest.raises(InvalidError):
        fail()

    assert verify() is None
    assert AuditLink.objects.count() == AuditEntry._base_manager.count() == 5


def test_pruning_leaves_a_chain_that_can_be_verified() -> None:
    for age in range(5):
        note(at=NOW - timedelta(days=10 - age))
    young = note().pk
    published = str(head())

    assert prune_audit(actor=BEAT, before=NOW - timedelta(days=8), batch=1) == 2
    assert verify() is None
    assert prune_audit(actor=BEAT, before=NOW) == 3

    kept = AuditEntry._base_manager.order_by("pk")
    assert kept[0].pk == young
    told = kept.filter(action="audit.prune")
    assert [row.after["removed"] for row in told] == [1, 1, 3]
    assert verified("--head", published)[0] == 0
    assert prune_audit(actor=BEAT, before=NOW) == 0
    note()
    assert verify() is None


def test_rows_of_the_last_day_are_never_pruned() -> None:
    note()

    assert prune_audit(actor=BEAT, before=NOW + timedelta(days=36500)) == 0
    assert AuditEntry._base_manager.count() == 1


def test_a_pruning_that_no_row_records_is_found() -> None:
    for _ in range(3):
        note(at=NOW)
    link = AuditLink.objects.get(position=2)
    AuditAnchor.objects.create(position=2, hash=link.hash, before=NOW + timedelta(days=1))
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM tenants_auditlink WHERE position <= 2")
        cursor.execute("DELETE FROM tenants_auditentry WHERE id <= %s", [link.entry_id])

    status, said = verified()

    assert (status, "without an audit.prune row" in said) == (1, True)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.text(max_size=20)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=10,
)  # fmt: skip


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(values=st.dictionaries(st.text(max_size=8), JSON, max_size=5), message=st.text(max_size=30))
def test_whatever_is_recorded_fits_its_link_when_it_is_read_again(values, message) -> None:
    record(actor=BEAT, action="x", object_type="x", after=values, before=values, message=message)

    assert verify() is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1.0, 1), (1e16, 10**16), (-0.0, 0), (1.5e300, 15 * 10**299), (1e-7, 0.0000001),
        ({"b": 1, "a": 2}, {"a": 2, "b": 1}),
    ],
)  # fmt: skip
def test_equal_values_have_one_form(one, other) -> None:
    assert canonical(one) == canonical(other)
    assert canonical([one, math.pi]) != canonical([math.pi, one])


@pytest.mark.parametrize("text", ["", "1", "1:xyz", f"x:{GENESIS}", f"1:{GENESIS}0"])
def test_what_is_no_head_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a head|invalid literal"):
        Head.read(text)
