"""A database for concurrency tests, and a helper that runs threads concurrently."""

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.core.management import call_command
from django.db import connections


@pytest.fixture(scope="session")
def migrated_template(
    tmp_path_factory: pytest.TempPathFactory, django_db_setup: None, django_db_blocker
) -> Iterator[str]:
    """Return the name of an empty, migrated database that ``real_database`` copies."""
    with django_db_blocker.unblock():
        name = _new_name(tmp_path_factory.mktemp("template"))
        _create(name, None)
        with _default_is(name):
            _allow_pauses()
            call_command("migrate", verbosity=0)
        yield name
        _drop(name)


@pytest.fixture
def real_database(migrated_template: str, tmp_path: Path, django_db_blocker) -> Iterator[None]:
    """Use a separate database as the default: a SQLite file, or a database of the PostgreSQL
    server.

    The usual database is not sufficient: in-memory SQLite shares one connection between all
    threads, and the outer transaction of a test hides its rows from other threads. Use it without
    the mark ``django_db``.
    """
    with django_db_blocker.unblock(), default_of_its_own(tmp_path, migrated_template):
        yield


@contextmanager
def default_of_its_own(folder: Path, template: str | None = None) -> Iterator[None]:
    """Use a new database as the default inside the block: empty, or a copy of ``template``."""
    name = _new_name(folder)
    _create(name, template)
    with _default_is(name):
        yield
    _drop(name)


def at_once(*acts: Callable[[], object]) -> list[Any]:
    """Run ``acts`` concurrently, each in a thread; return their results or exceptions in order."""
    barrier = threading.Barrier(len(acts), timeout=60)
    outcomes: list[Any] = [None] * len(acts)

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
        thread.join(timeout=100)
        assert not thread.is_alive(), "a thread hangs"
    return outcomes


def _is_sqlite() -> bool:
    return "sqlite" in connections.settings["default"]["ENGINE"]


def _allow_pauses() -> None:
    """Let migrations compute for long between two statements, as they do on a busy machine."""
    if not _is_sqlite():
        with connections["default"].cursor() as cursor:
            cursor.execute("SET idle_in_transaction_session_timeout = 0")


def _new_name(folder: Path) -> str:
    return str(folder / "real.sqlite3") if _is_sqlite() else f"tessera_test_{uuid4().hex[:12]}"


def _create(name: str, template: str | None) -> None:
    if _is_sqlite():
        if template is not None:
            shutil.copyfile(template, name)
        return
    origin = f' TEMPLATE "{template}"' if template else ""
    with connections["default"]._nodb_cursor() as cursor:
        cursor.execute(f'CREATE DATABASE "{name}"{origin}')


def _drop(name: str) -> None:
    if _is_sqlite():
        return  # pytest removes its folders
    with connections["default"]._nodb_cursor() as cursor:
        cursor.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@contextmanager
def _default_is(name: str) -> Iterator[None]:
    usual, lent = connections.settings["default"], connections["default"]
    connections.settings["default"] = {**usual, "NAME": name}
    connections["default"] = connections.create_connection("default")
    try:
        yield
    finally:
        connections["default"].close()
        connections.settings["default"] = usual
        connections["default"] = lent
