"""Copies of whole storages: while logs grow, after interruptions, and with damaged copies."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.storage.base import Extent, FileStorage, StorageUnavailableError
from scheduling.storage.directory import DirectoryStorage
from scheduling.storage.moving import CopyDamagedError, MoveProgress, StorageMove
from scheduling.storage.objects import ObjectStorage
from tests.support.object_store import ObjectStoreServer, StoreGate

CAP = 1 << 40
LOG = "7/1/worker-0.log"


@pytest.fixture(params=["to the object store", "to a directory"])
def pair(
    request: pytest.FixtureRequest, object_store: ObjectStoreServer, tmp_path: Path
) -> tuple[FileStorage, FileStorage]:
    directory = DirectoryStorage(tmp_path / "old", segment_bytes=10)
    config = object_store.new_bucket(tmp_path / "host")
    objects = ObjectStorage(config, segment_bytes=10)
    return (directory, objects) if "object" in request.param else (objects, directory)


def fill(storage: FileStorage) -> None:
    storage.put("rounds/000000/000000001-abc.json.zst", b"round")
    storage.put("archives/" + "a" * 64, b"code" * 700_000)
    storage.logs.write(LOG, offset=0, data=bytes(range(95)), cap_bytes=CAP)
    storage.logs.write("12/1/ps-3.log", offset=0, data=b"x" * 60, cap_bytes=25)


def test_everything_is_copied_and_the_source_stays(
    pair: tuple[FileStorage, FileStorage],
) -> None:
    source, target = pair
    fill(source)

    done = StorageMove(source, target).run()

    assert (done.seen, done.copied) == (4, 4)
    for storage in pair:
        assert storage.get("rounds/000000/000000001-abc.json.zst") == b"round"
        assert b"".join(storage.open_chunks("archives/" + "a" * 64)) == b"code" * 700_000
        assert storage.logs.read(LOG, offset=0, limit=999).data == bytes(range(95))
        assert storage.logs.extent("12/1/ps-3.log") == Extent(30, 60)
    again = StorageMove(source, target, verifies_all=True).run()
    assert again == MoveProgress(seen=4, verified=2)


def test_a_log_is_copied_from_its_last_gap_on(pair: tuple[FileStorage, FileStorage]) -> None:
    source, target = pair
    source.logs.write(LOG, offset=0, data=b"before", cap_bytes=CAP)
    # The service ended before it had deleted the bytes before the gap.
    source.logs.write(LOG, offset=30, data=b"behind the gap", cap_bytes=CAP)

    StorageMove(source, target).run()

    assert target.logs.extent(LOG) == Extent(30, 44)
    assert target.logs.read(LOG, offset=30, limit=99).data == b"behind the gap"


def test_logs_that_grow_meanwhile_are_copied_by_the_next_pass(
    pair: tuple[FileStorage, FileStorage],
) -> None:
    source, target = pair
    fill(source)
    grown = []

    def grow(done: MoveProgress) -> None:
        first = source.logs.extent(LOG).end
        source.logs.write(LOG, offset=first, data=b"more", cap_bytes=CAP)
        grown.append(first)

    StorageMove(source, target, report=grow).run()
    # A host that uses the new storage already has fetched the beginning from the node.
    StorageMove(source, target).run()

    whole = bytes(range(95)) + b"more" * len(grown)
    assert target.logs.read(LOG, offset=0, limit=999).data == whole


def test_a_log_that_continues_in_the_target_gets_its_beginning(
    pair: tuple[FileStorage, FileStorage],
) -> None:
    source, target = pair
    source.logs.write(LOG, offset=0, data=bytes(range(60)), cap_bytes=CAP)
    target.logs.write(LOG, offset=40, data=bytes(range(40, 90)), cap_bytes=CAP)

    StorageMove(source, target).run()

    assert target.logs.extent(LOG) == Extent(0, 90)
    assert target.logs.read(LOG, offset=0, limit=999).data == bytes(range(90))


def test_an_interrupted_copy_continues(
    object_store: ObjectStoreServer, store_gate: StoreGate, tmp_path: Path
) -> None:
    source = DirectoryStorage(tmp_path / "old", segment_bytes=10)
    config = object_store.new_bucket(tmp_path / "host", gate=store_gate)
    fill(source)

    def stop(done: MoveProgress) -> None:
        if done.seen == 2:
            store_gate.close()

    with pytest.raises(StorageUnavailableError):
        StorageMove(source, ObjectStorage(config), report=stop).run()
    store_gate.open()

    target = ObjectStorage(replace(config))
    done = StorageMove(source, target).run()
    assert (done.seen, done.copied) == (4, 2)
    assert target.logs.read(LOG, offset=0, limit=999).data == bytes(range(95))


class DamagingStorage(DirectoryStorage):
    """Flips one bit of each file."""

    def put_file(self, name: str, path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[0] ^= 1
        self.put(name, bytes(content))


def test_a_damaged_copy_is_found(tmp_path: Path) -> None:
    source = DirectoryStorage(tmp_path / "old")
    source.put("rounds/a", b"round")

    with pytest.raises(CopyDamagedError, match="rounds/a"):
        StorageMove(source, DamagingStorage(tmp_path / "new")).run()
    with pytest.raises(CopyDamagedError, match="rounds/a"):
        StorageMove(source, DamagingStorage(tmp_path / "new"), verifies_all=True).run()


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["old", "new", "move"]), st.integers(1, 30)), max_size=25
    )
)
def test_hosts_with_the_old_and_the_new_storage_lose_no_byte(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    """Hosts change over one after the other; the node has the whole log until its end."""
    root = tmp_path_factory.mktemp("move")
    storages = {name: DirectoryStorage(root / name, segment_bytes=10) for name in ("old", "new")}
    length = 0
    for kind, size in steps:
        if kind == "move":
            StorageMove(storages["old"], storages["new"]).run()
            continue
        length += size
        logs = storages[kind].logs
        first = logs.extent(LOG).end
        logs.write(LOG, offset=first, data=bytes(at % 251 for at in range(first, length)),
                   cap_bytes=CAP)  # fmt: skip
    StorageMove(storages["old"], storages["new"]).run()

    found = storages["new"].logs.read(LOG, offset=0, limit=1 << 20)
    assert found.data == bytes(at % 251 for at in range(length))
