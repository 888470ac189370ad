"""Fixtures that every room's tests may use."""

import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from asgiref.sync import SyncToAsync
from django.conf import settings as django_settings
from django.core.cache import cache
from django.db import connections, transaction
from django.utils import translation
from hypothesis import HealthCheck, settings

from tenants.keyring import forget_keys
from tests.support.budgets import be_patient

if TYPE_CHECKING:
    from tests.support.request_ports import Requested

# Before NumPy comes: threads for small matrices only wait for one another.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

ANNOUNCEMENTS = "tessera:announcements"
FAILING_PARTS = "tessera:failing-parts"
PROJECT_ROOT = Path(__file__).resolve().parent.parent

# Machines may be slow and noisy: a slow example is not a bug, an endless one hits the timeout.
settings.register_profile(
    "quick", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "soak", deadline=None, max_examples=2_000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Know pytest-asyncio's settings where it is switched off, as for the browser's tests."""
    if not pluginmanager.hasplugin("asyncio"):
        for name in ("asyncio_mode", "asyncio_default_fixture_loop_scope"):
            parser.addini(name, "of pytest-asyncio, which is switched off")
    parser.addoption(
        "--database-only",
        action="store_true",
        help="leave out tests that never ask the database: another database cannot change them",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests without a database, if ``--database-only`` is given."""
    if not config.getoption("--database-only"):
        return
    asking = [item for item in items if _asks_the_database(item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(asking)])
    items[:] = asking


def _asks_the_database(item: pytest.Item) -> bool:
    """Return whether pytest-django opens the database for this test, or it says so by its mark."""
    if item.get_closest_marker("django_db") or item.get_closest_marker("pg"):
        return True
    fixtures = set(getattr(item, "fixturenames", ()))
    return bool(fixtures & {"db", "transactional_db", "live_server", "django_db_setup"})


def pytest_make_parametrize_id(val: object) -> str | None:
    """Packed files carry the time: named by their bytes, a test would be another each time."""
    return f"{len(val)}-bytes" if isinstance(val, bytes) and len(val) > 10 else None


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of conformance cases and traces; tests that need it skip where it is missing."""
    shared = Path(os.environ.get("TESSERA_SHARED", PROJECT_ROOT / ".." / "shared")).resolve()
    if not shared.is_dir():
        pytest.skip(f"no shared cases at TESSERA_SHARED ({shared})")
    return shared


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None) -> Iterator[None]:
    """The test database, whose last guest has left when it is dropped.

    Coroutines ask it in one thread that they all share, and nobody but this ends its connection.
    """
    yield
    SyncToAsync.single_thread_executor.submit(connections.close_all).result()


@pytest.fixture(autouse=True)
def keys_of_this_test() -> Iterator[None]:
    """Read the installation's keys again: each test has its own database and data directory."""
    yield
    forget_keys()


@pytest.fixture(autouse=True)
def audit_that_can_be_flushed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Delete audit rows, which the database refuses, before a transactional test is flushed."""
    mark = request.node.get_closest_marker("django_db")
    if mark is None or not mark.kwargs.get("transaction"):
        yield
        return
    request.getfixturevalue("transactional_db")  # so that it is torn down after this
    yield
    triggers = import_module("tenants.migrations.0002_audit_triggers")
    with transaction.atomic(), connections["default"].cursor() as cursor:
        editor = SimpleNamespace(
            connection=connections["default"], execute=lambda sql, params=None: cursor.execute(sql)
        )
        triggers.remove(None, editor)
        for table in triggers.TABLES:
            cursor.execute(f"DELETE FROM tenants_{table}")
        triggers.install(None, editor)


@pytest.fixture(scope="session", autouse=True)
def patience() -> Iterator[None]:
    """No answer of this process is cut short because the machine is slow."""
    with pytest.MonkeyPatch.context() as patch:
        be_patient(patch)
        yield


@pytest.fixture(scope="session", autouse=True)
def files_apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Files of rounds and uploads go into a folder of this process.

    Another process of the run has a round 1, too, and so has an installation in ``var/``.
    """
    folder = tmp_path_factory.mktemp("var")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            django_settings, "TESSERA", replace(django_settings.TESSERA, data_dir=folder)
        )
        yield


@pytest.fixture(autouse=True)
def nothing_announced() -> None:
    """Pages know that nothing is announced and no part fails, so that they ask equally often.

    Tests of announcements and of failing parts clear the cache first.
    """
    cache.set(ANNOUNCEMENTS, (), None)
    cache.set(FAILING_PARTS, (), None)


@pytest.fixture(autouse=True)
def no_language_is_left() -> Iterator[None]:
    """The next test speaks English, whatever page this one has looked at last in its thread."""
    yield
    translation.deactivate()


@pytest.fixture
def now() -> datetime:
    """One instant for all that a test does."""
    return datetime(2026, 3, 2, 9, 30, tzinfo=UTC)


@pytest.fixture
def requested() -> "Iterator[Requested]":
    """Rounds, estimates and what-if answers that a test requests."""
    from tests.support.request_ports import requested_ports  # needs the loaded applications

    with requested_ports() as found:
        yield found
