"""A process that is frozen in a transaction does not stop the others (PostgreSQL)."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from urllib.parse import quote

import pytest
from django.db import InterfaceError, OperationalError, connections, transaction

from portal.settings.environment import PROJECT_ROOT
from tenants.audit import Actor, record
from tenants.audit_chain import verify
from tenants.models import AuditEntry, Tenant
from tests.factories.tenants import make_tenant
from tests.support.databases import migrated_template, real_database

__all__ = ["migrated_template", "real_database"]

pytestmark = [pytest.mark.pg, pytest.mark.usefixtures("real_database")]

IDLE = 2.0
FROZEN = """
import sys
import django
django.setup()
from django.db import OperationalError, connection, transaction
from tenants.audit import Actor, record
from tenants.audit_chain import extend_chain
from tenants.models import AuditEntry, Tenant

def change(note, wait=False):
    with transaction.atomic():
        Tenant.objects.unscoped().filter(name="vision").update(note=note)
        record(actor=Actor.system("frozen"), action="x", object_type="x", message=note)
        if wait:
            entries = [
                AuditEntry.objects.create(actor_name="x", action="y", object_type="y")
                for _ in range(2)
            ]
            extend_chain(connection, entries)  # as the commit does
            print("locked", flush=True)
            sys.stdin.readline()
        Tenant.objects.unscoped().filter(name="language").update(note=note)

try:
    change("frozen", wait=True)
except OperationalError:
    print("refused", flush=True)
change("again")
print("written", flush=True)
"""


@contextmanager
def frozen_in_transaction() -> Iterator["subprocess.Popen[str]"]:
    """A process that holds the lock of the audit's chain and locks of rows, and is frozen."""
    default = connections["default"].settings_dict
    if "postgresql" not in default["ENGINE"]:
        pytest.skip("the database is not PostgreSQL")
    user = quote(default["USER"]) + (f":{quote(default['PASSWORD'])}" * bool(default["PASSWORD"]))
    host = quote(default["HOST"], safe="") + (f":{default['PORT']}" * bool(default["PORT"]))
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "portal.settings.test",
        "TESSERA_DATABASE_URL": f"postgres://{user}@{host}/{default['NAME']}",
        "TESSERA_DATABASE_IDLE_SECONDS": str(IDLE),
    }
    with subprocess.Popen(
        [sys.executable, "-c", FROZEN],
        env=environment,
        cwd=PROJECT_ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "locked\n"
            process.send_signal(signal.SIGSTOP)
            yield process
        finally:
            process.kill()


def test_a_frozen_process_holds_the_locks_of_its_transaction_for_a_short_time() -> None:
    make_tenant("vision")
    make_tenant("language")

    with frozen_in_transaction() as process:
        begun = time.monotonic()
        with transaction.atomic():
            Tenant.objects.unscoped().filter(name="vision").update(note="other")
            record(actor=Actor.system("other"), action="x", object_type="x", message="other")
        waited = time.monotonic() - begun

        process.send_signal(signal.SIGCONT)
        said, _ = process.communicate("go on\n", timeout=60)

    assert waited < IDLE + 3
    assert said.split() == ["refused", "written"]
    notes = AuditEntry._base_manager.filter(action="x").order_by("pk")
    assert list(notes.values_list("message", flat=True)) == ["other", "again"]
    assert set(Tenant.objects.unscoped().values_list("note", flat=True)) == {"again"}
    assert verify() is None


def test_a_transaction_that_was_ended_at_its_commit_is_repeated_on_a_new_connection() -> None:
    connection = connections["default"]
    if connection.vendor != "postgresql":
        pytest.skip("the database is not PostgreSQL")

    def change(note: str, *, ended: bool = False) -> None:
        with transaction.atomic():
            record(actor=Actor.system("x"), action="x", object_type="x", message=note)
            if ended:
                pid = connection.connection.info.backend_pid
                with closing(connections.create_connection("default")) as other:
                    other.cursor().execute("SELECT pg_terminate_backend(%s)", [pid])

    with pytest.raises((OperationalError, InterfaceError)):
        change("ended", ended=True)
    change("again")

    assert [row.message for row in AuditEntry._base_manager.filter(action="x")] == ["again"]
    assert verify() is None
