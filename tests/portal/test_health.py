"""``/healthz`` and ``/readyz``: without login, and by name what is missing."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test import Client
from django.utils import timezone

from scheduling.models import Round

pytestmark = pytest.mark.django_db


def readiness(client: Client) -> tuple[int, dict[str, Any]]:
    response = client.get("/readyz")
    body = response.json()
    assert (body["status"] == "ok") == (response.status_code == 200)
    return response.status_code, body["checks"]


def add_round(*, age: timedelta) -> None:
    now = timezone.now()
    Round.objects.create(number=1, started_at=now - age, committed_at=now - age, duration_ms=1.0)


def test_a_process_that_answers_is_up_whatever_else_is_not(client: Client) -> None:
    response = client.get("/healthz")

    assert (response.status_code, response.json()) == (200, {"status": "ok"})


def test_without_a_broker_it_is_not_ready_and_says_so(client: Client) -> None:
    add_round(age=timedelta(0))

    status, checks = readiness(client)

    assert status == 503
    assert checks == {"database": "ok", "broker": "unreachable", "rounds": "ok"}


def test_before_the_first_round_it_is_not_ready(client: Client) -> None:
    status, checks = readiness(client)

    assert (status, checks["rounds"]) == (503, "none yet")


@pytest.mark.parametrize(("seconds", "word"), [(25, "ok"), (31, "late")])
def test_a_round_counts_for_three_intervals(client: Client, seconds: int, word: str) -> None:
    add_round(age=timedelta(seconds=seconds))

    assert readiness(client)[1]["rounds"] == word


def test_without_a_database_it_is_not_ready_and_says_so(client: Client) -> None:
    def away(*_: object) -> None:
        raise OperationalError("the server closed the connection")

    with connection.execute_wrapper(away):
        status, checks = readiness(client)

    assert status == 503
    assert (checks["database"], checks["rounds"]) == ("unreachable", "unknown")
