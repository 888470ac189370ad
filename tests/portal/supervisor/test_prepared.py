"""When a start may begin everything beside ``set_up``: only on the tables that it left."""

from pathlib import Path

import pytest

from portal.supervisor.startup import fingerprint, is_prepared, note_prepared


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "db.sqlite3").write_text("rows")
    return tmp_path


def test_a_prepared_folder_is_recognised(data: Path) -> None:
    stamp = data / "prepared.json"
    assert not is_prepared(stamp, fingerprint(data, {}))

    note_prepared(stamp, fingerprint(data, {}))

    assert is_prepared(stamp, fingerprint(data, {}))


def test_another_file_is_another_database(data: Path) -> None:
    before = fingerprint(data, {})
    (data / "other").write_text("rows")
    (data / "other").replace(data / "db.sqlite3")
    replaced = fingerprint(data, {})
    (data / "db.sqlite3").unlink()

    assert len({before, replaced, fingerprint(data, {})}) == 3


def test_another_server_is_another_database(data: Path) -> None:
    urls = ("postgres://one/tessera", "postgres://two/tessera", "")

    assert len({fingerprint(data, {"TESSERA_DATABASE_URL": url}) for url in urls}) == 3


def test_another_migration_or_package_is_another_version(data: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "workers/migrations").mkdir(parents=True)
    (root / "requirements").mkdir()
    lock = root / "requirements/server.txt"
    lock.write_text("django==5.2.19")
    found = {fingerprint(data, {}, root)}

    (root / "workers/migrations/0009_more.py").write_text("operations = []")
    found.add(fingerprint(data, {}, root))
    (root / "workers/migrations/0009_more.py").write_text("operations = [1]")
    found.add(fingerprint(data, {}, root))
    lock.write_text("django==5.2.20")
    found.add(fingerprint(data, {}, root))

    assert len(found) == 4


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"fingerprint": 1}'])
def test_a_damaged_stamp_counts_as_none(data: Path, content: str) -> None:
    (data / "prepared.json").write_text(content)

    assert not is_prepared(data / "prepared.json", fingerprint(data, {}))


def test_a_full_disk_ends_no_start(tmp_path: Path) -> None:
    note_prepared(tmp_path / "missing" / "prepared.json", "abc")
