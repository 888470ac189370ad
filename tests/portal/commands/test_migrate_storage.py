"""``manage.py migrate_storage``: progress, repetition, and no credentials in messages."""

from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from scheduling.storage.directory import DirectoryStorage
from scheduling.storage.objects import ObjectStorage
from tests.support.object_store import ObjectStoreServer, object_store

__all__ = ["object_store"]


def migrate(source: str, target: str, **options: bool) -> str:
    out = StringIO()
    call_command("migrate_storage", "--from", source, "--to", target, stdout=out, **options)
    return out.getvalue()


def test_a_directory_is_copied_to_a_bucket_and_back(
    object_store: ObjectStoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = object_store.new_bucket(tmp_path / "host")
    monkeypatch.setenv("TESSERA_STORAGE_ENDPOINT", config.endpoint)
    monkeypatch.setenv("TESSERA_STORAGE_REGION", config.region)
    monkeypatch.setenv("TESSERA_STORAGE_ACCESS_KEY", config.access_key)
    monkeypatch.setenv("TESSERA_STORAGE_SECRET_KEY", config.secret_key)
    old = DirectoryStorage(tmp_path / "old")
    old.put("rounds/000000/a.json.zst", b"round")
    old.logs.write("7/1/worker-0.log", offset=0, data=b"text\n" * 1000, cap_bytes=1 << 30)
    bucket = f"s3://{config.bucket}/{config.prefix}"

    first = migrate(f"directory://{tmp_path}/old", bucket)
    again = migrate(f"directory://{tmp_path}/old", bucket, verify=True)
    migrate(bucket, f"directory://{tmp_path}/new")

    assert "pass 1: 2 files and logs compared, 2 copied" in first
    assert "pass 2: 2 files and logs compared, 0 copied" in first
    assert "0 copied (0.0 MiB), 1 existing ones verified" in again
    assert ObjectStorage(config).logs.read("7/1/worker-0.log", offset=0, limit=5).data == b"text\n"
    new = DirectoryStorage(tmp_path / "new")
    assert new.get("rounds/000000/a.json.zst") == b"round"
    assert new.logs.read("7/1/worker-0.log", offset=0, limit=1 << 20).data == b"text\n" * 1000
    for text in (first, again):
        assert config.secret_key not in text


@pytest.mark.parametrize(
    "place", ["ftp://x", "s3://key:word@bucket/x", "s3://ab", "s3://b?x=word"]
)
def test_a_wrong_place_is_refused_without_repeating_it(tmp_path: Path, place: str) -> None:
    with pytest.raises(CommandError) as refused:
        migrate(f"directory://{tmp_path}", place)

    assert "s3://bucket/prefix" in str(refused.value)
    assert "word" not in str(refused.value)


def test_the_same_storage_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="the same storage"):
        migrate(f"directory://{tmp_path}", f"directory://{tmp_path}")
