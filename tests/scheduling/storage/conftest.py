"""Storages of both kinds, with small log segments."""

from dataclasses import replace
from pathlib import Path

import pytest

from scheduling.storage.base import FileStorage
from scheduling.storage.directory import DirectoryStorage
from scheduling.storage.objects import ObjectStorage
from tests.support.object_store import ObjectStoreServer, object_store, store_gate

__all__ = ["object_store", "store_gate"]

SEGMENT = 10


@pytest.fixture(params=["directory", "object store"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> FileStorage:
    """Return an empty storage of one of the two kinds."""
    root = tmp_path / "storage"
    if request.param == "directory":
        return DirectoryStorage(root, segment_bytes=SEGMENT)
    running: ObjectStoreServer = request.getfixturevalue("object_store")
    return ObjectStorage(running.new_bucket(root), segment_bytes=SEGMENT)


@pytest.fixture
def hosts(object_store: ObjectStoreServer, tmp_path: Path) -> tuple[ObjectStorage, ObjectStorage]:
    """Two hosts with separate data directories and one bucket."""
    config = object_store.new_bucket(tmp_path / "a")
    other = replace(config, data_dir=tmp_path / "b")
    first, second = (ObjectStorage(one, segment_bytes=SEGMENT) for one in (config, other))
    return first, second
