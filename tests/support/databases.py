"""A database on which threads really meet, and a way to make them meet."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connections


@pytest.fixture
def real_database(
    request: pytest.FixtureRequest, tmp_path: Path, django_db_setup: None, django_db_blocker
) -> Iterator[None]:
    """An own SQLite file, migrated, as the default database (PostgreSQL: the test database).

    In-memory SQLite would lend one connection to all threads, so that nothing could race.
    """
    usual = connections.settings["default"]
    if "sqlite" not in usual["ENGINE"]:
        request.getfixturevalue("transactional_db")
        yield
        return
    with django_db_blocker.unblock():
        lent = connections["default"]
        own = {**usual, "NAME": str(tmp_path / "race.sqlite3")}
        connections.settings["default"] = own
        connections["default"] = connections.create_connection("default")
        try:
            call_command("migrate", verbosity=0)
            yield
        finally:
            connections["default"].close()
            connections.settings["default"] = usual
            connections["default"] = lent


def at_once(*acts: Callable[[], object]) -> list[object]:
    """Run ``acts`` in a thread each, let go together; what each returned or raised, in order."""
    barrier = threading.Barrier(len(acts), timeout=20)
    outcomes: list[object] = [None] * len(acts)

    def perform(number: int, act: Callable[[], object]) -> None:
        try:
            connections["default"].ensure_connection()
            barrier.wait()
            outcomes[number] = act()
        except Exception as error:
            outcomes[number] = error
        finally:
            connections.close_all()

    threads = [
        threading.Thread(target=perform, args=(number, act), daemon=True)
        for number, act in enumerate(acts)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=40)
        assert not thread.is_alive(), "a thread hangs"
    return outcomes
