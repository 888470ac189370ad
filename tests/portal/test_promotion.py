"""A PostgreSQL standby is promoted while submits arrive: no accepted job is lost or doubled."""

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.db import DatabaseError, connections
from django.test import Client

from portal.settings.backends import databases
from scheduling.jobs.models import Job
from tenants.models import User
from tenants.roles import Scope
from tests.factories.cluster import job_document
from tests.factories.scheduling import make_two_tenants
from tests.factories.tenants import make_token
from tests.support.postgres_pair import PostgresPair, postgres_pair
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.pg, pytest.mark.timeout(400)]
THREADS = 3


@pytest.fixture
def pair(django_db_blocker: Any) -> Iterator[PostgresPair]:
    """Both servers as the default database, migrated."""
    with postgres_pair() as found, django_db_blocker.unblock():
        usual, lent = connections.settings["default"], connections["default"]
        wanted = databases(found.url)["default"]
        connections.settings["default"] = {**usual, **wanted, "TEST": usual.get("TEST", {})}
        connections["default"] = connections.create_connection("default")
        try:
            call_command("migrate", verbosity=0)
            yield found
        finally:
            connections["default"].close()
            connections.settings["default"] = usual
            connections["default"] = lent


class Submitter(threading.Thread):
    """Submits jobs and repeats each with its idempotency key until it is accepted."""

    def __init__(self, token: str, name: str, over: threading.Event) -> None:
        super().__init__(daemon=True)
        self._token, self._word, self._over = token, name, over
        self.accepted: dict[str, int] = {}
        self.refused = 0

    def run(self) -> None:
        try:
            self._submit()
        finally:
            connections.close_all()

    def _submit(self) -> None:
        number = 0
        while not self._over.is_set():
            number += 1
            key = f"{self._word}-{number}"
            while key not in self.accepted and not self._over.is_set():
                self._try(key)

    def _try(self, key: str) -> None:
        client = Client(raise_request_exception=False)
        try:
            answer = client.post(
                "/api/v1/jobs/", job_document(), content_type="application/json",
                headers={"Authorization": f"Token {self._token}", "Idempotency-Key": key},
            )  # fmt: skip
        finally:
            # Between requests a web process closes connections that broke.
            connections["default"].close_if_unusable_or_obsolete()
        if answer.status_code in (200, 201):
            self.accepted[key] = answer.json()["id"]
        else:
            assert answer.status_code in (500, 503), answer.content
            self.refused += 1
            time.sleep(0.05)


def test_every_accepted_submit_is_there_after_the_promotion(pair: PostgresPair) -> None:
    make_two_tenants()
    token = make_token(User.objects.get(username="alice"), Scope.JOBS_READ, Scope.JOBS_WRITE)
    over = threading.Event()
    submitters = [Submitter(token.key, f"thread-{n}", over) for n in range(THREADS)]
    for one in submitters:
        one.start()

    def accepted() -> int:
        return sum(len(one.accepted) for one in submitters)

    wait_until(lambda: accepted() >= 10, 90, "the first submits")
    pair.kill_primary()
    before = accepted()
    wait_until(lambda: any(one.refused for one in submitters), 60, "a refused submit")
    pair.promote_standby()
    wait_until(lambda: accepted() >= before + 10, 90, "submits at the new primary")
    over.set()
    for one in submitters:
        one.join(60)
        assert not one.is_alive()

    connections["default"].close()
    known = dict(Job.objects.unscoped().values_list("idempotency_key", "pk"))
    for one in submitters:
        assert one.accepted.items() <= known.items()
    assert len(known) == Job.objects.unscoped().count()


def test_snapshots_are_read_at_the_primary_although_they_are_read_only(pair: PostgresPair) -> None:
    snapshot = databases(pair.url)["snapshot"]
    options = {**snapshot["OPTIONS"], "host": snapshot["HOST"], "port": snapshot["PORT"]}

    with psycopg.connect(user="tessera", dbname="postgres", **options) as connection:
        (port,) = connection.execute("SHOW port").fetchone() or ("",)
        (is_read_only,) = connection.execute("SHOW transaction_read_only").fetchone() or ("",)

    assert (int(port), is_read_only) == (pair.ports[0], "on")
    with suppress(DatabaseError):
        connections["default"].close()
