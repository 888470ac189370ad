"""What connections are told when they are opened."""

import pytest
from django.db import connections

from portal.settings.backends import databases

URL = "postgres://alice@localhost/tessera"


@pytest.mark.parametrize("alias", ["default", "snapshot"])
def test_postgresql_writes_moments_in_one_style(alias: str) -> None:
    options = databases(URL)[alias]["OPTIONS"]["options"]

    assert "-c DateStyle=ISO" in options
    assert ("default_transaction_read_only=on" in options) == (alias == "snapshot")


def test_options_of_the_address_are_kept() -> None:
    found = databases(f"{URL}?sslmode=require&options=-c%20statement_timeout%3D5s")

    for alias in ("default", "snapshot"):
        assert found[alias]["OPTIONS"]["sslmode"] == "require"
        assert "-c statement_timeout=5s -c Date" in found[alias]["OPTIONS"]["options"]


@pytest.mark.parametrize(("idle", "alias", "limit"), [
    (10.0, "default", 10_000), (10.0, "snapshot", 60_000), (90.0, "snapshot", 90_000),
])  # fmt: skip
def test_idle_transactions_are_limited(idle: float, alias: str, limit: int) -> None:
    options = databases(URL, idle_seconds=idle)[alias]["OPTIONS"]["options"]

    assert f"-c idle_in_transaction_session_timeout={limit} " in options


def test_the_address_may_override_limits_of_connections() -> None:
    url = f"{URL}?connect_timeout=3&options=-c%20idle_in_transaction_session_timeout%3D5s"

    for found in databases(url).values():
        options = found["OPTIONS"]["options"].split()
        idle = [text for text in options if text.startswith("idle_in_transaction")]
        assert found["OPTIONS"]["connect_timeout"] in (3, "3")
        assert idle[-1] == "idle_in_transaction_session_timeout=5s"


def test_silent_peers_are_given_up_after_about_11_seconds() -> None:
    for found in databases(URL).values():
        options = found["OPTIONS"]
        silence = options["keepalives_idle"] + options["keepalives_interval"] * 3
        assert (options["keepalives_count"], silence, options["tcp_user_timeout"]) == (
            3, 11, 11_000,
        )  # fmt: skip
        assert "-c tcp_keepalives_idle=5 " in options["options"]


@pytest.mark.django_db
def test_a_database_that_is_connected_to_writes_iso() -> None:
    connection = connections["default"]
    if connection.vendor != "postgresql":
        pytest.skip("SQLite stores moments as text")

    with connection.cursor() as cursor:
        cursor.execute("SHOW DateStyle")
        (style,) = cursor.fetchone()

    assert style.startswith("ISO")
