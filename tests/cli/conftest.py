"""A portal of prepared answers for every test, and the program against it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.prepared_portal import CommandLine, Portal, serve_prepared


@pytest.fixture
def portal() -> Iterator[Portal]:
    with serve_prepared() as prepared:
        yield prepared


@pytest.fixture
def tessera(
    portal: Portal,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> CommandLine:
    monkeypatch.setenv("TESSERA_URL", portal.url)
    monkeypatch.setenv("TESSERA_TOKEN", "tok-1")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return CommandLine(capsys, monkeypatch)


@pytest.fixture
def job() -> dict[str, Any]:
    return {
        "id": 7,
        "name": "hello",
        "state": "queued",
        "user": "alice",
        "virtual_cluster": "vision-a",
        "submitted_at": "2026-03-01T10:00:00Z",
        "warnings": [],
    }
