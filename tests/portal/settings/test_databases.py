"""What connections are told when they are opened."""

import pytest
from django.db import connections

from portal.settings.databases import databases

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
        assert found[alias]["OPTIONS"]["options"].startswith("-c statement_timeout=5s -c Date")


@pytest.mark.django_db
def test_a_database_that_is_connected_to_writes_iso() -> None:
    connection = connections["default"]
    if connection.vendor != "postgresql":
        pytest.skip("SQLite stores moments as text")

    with connection.cursor() as cursor:
        cursor.execute("SHOW DateStyle")
        (style,) = cursor.fetchone()

    assert style.startswith("ISO")
