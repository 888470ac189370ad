"""An object store that is away, slow, failing or cut: nothing is lost, and callers are told."""

import hashlib
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from scheduling.storage import bucket
from scheduling.storage.base import NotStoredError, StorageUnavailableError
from scheduling.storage.bucket import NO_BUCKET, UNREACHABLE, TimeLimits
from scheduling.storage.config import StorageConfig
from scheduling.storage.objects import ObjectStorage
from scheduling.storage.spool import FULL
from tests.support.object_store import ACCESS_KEY, SECRET_KEY, ObjectStoreServer, StoreGate
from tests.support.waiting import wait_until

CAP = 1 << 40
LOG = "7/1/worker-0.log"


@pytest.fixture
def config(
    object_store: ObjectStoreServer, store_gate: StoreGate, tmp_path: Path
) -> StorageConfig:
    return object_store.new_bucket(tmp_path / "a", gate=store_gate)


@pytest.fixture
def storage(config: StorageConfig) -> ObjectStorage:
    return ObjectStorage(config, segment_bytes=10)


def other_host(config: StorageConfig) -> ObjectStorage:
    return ObjectStorage(replace(config, data_dir=config.data_dir.with_name("b")))


def until_stored(storage: ObjectStorage, offset: int, data: bytes) -> None:
    """Repeat a write as the follower of a log does."""

    def is_stored() -> bool:
        try:
            storage.logs.write(LOG, offset=offset, data=data, cap_bytes=CAP)
        except StorageUnavailableError:
            return False
        return True

    wait_until(is_stored, what="the append is stored")


def test_a_log_is_whole_after_the_store_was_killed_and_started_again(
    storage: ObjectStorage, store_gate: StoreGate
) -> None:
    for at in range(0, 60, 3):
        if at == 30:
            store_gate.close()
            with pytest.raises(StorageUnavailableError):
                storage.logs.write(LOG, offset=at, data=b"%03d" % at, cap_bytes=CAP)
            with pytest.raises(StorageUnavailableError):
                storage.logs.read(LOG, offset=0, limit=99)
            with pytest.raises(StorageUnavailableError):
                storage.logs.extent(LOG)
            store_gate.open()
        until_stored(storage, at, b"%03d" % at)

    assert storage.logs.read(LOG, offset=0, limit=99).data == b"".join(
        b"%03d" % at for at in range(0, 60, 3)
    )


def test_one_failed_request_is_repeated_at_once(
    storage: ObjectStorage, store_gate: StoreGate
) -> None:
    store_gate.failing = 2

    storage.logs.write(LOG, offset=0, data=b"text", cap_bytes=CAP)

    assert store_gate.failing == 0
    assert storage.logs.read(LOG, offset=0, limit=99).data == b"text"


def test_many_failed_requests_lose_nothing(storage: ObjectStorage, store_gate: StoreGate) -> None:
    store_gate.failing = 7

    until_stored(storage, 0, b"text")

    assert storage.logs.read(LOG, offset=0, limit=99).data == b"text"


@pytest.mark.parametrize("most", [10, 300, 1500])
def test_a_write_that_was_cut_is_stored_whole_or_not_at_all(
    storage: ObjectStorage, store_gate: StoreGate, most: int
) -> None:
    storage.put("rounds/a", b"before")
    store_gate.cutting, store_gate.cut_after = 2, most

    storage.put("rounds/a", b"x" * 5000)

    assert storage.get("rounds/a") == b"x" * 5000


def test_a_slow_store_is_waited_for(storage: ObjectStorage, store_gate: StoreGate) -> None:
    store_gate.delay = 0.2

    storage.logs.write(LOG, offset=0, data=b"text", cap_bytes=CAP)

    assert storage.logs.read(LOG, offset=0, limit=99).data == b"text"


def test_a_store_that_never_answers_costs_its_limit_once(
    config: StorageConfig, store_gate: StoreGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "CHECK", TimeLimits(connect=0.1, read=0.1, attempts=1))
    storage = ObjectStorage(config)
    with pytest.raises(NotStoredError):
        storage.get("rounds/a")
    now = [0.0]
    monkeypatch.setattr(storage._bucket, "_clock", lambda: now[0])
    slow = TimeLimits(connect=0.1, read=0.3, attempts=2)
    store_gate.delay = 1000.0
    with pytest.raises(StorageUnavailableError):
        storage._bucket._call("rounds/a", lambda client: client.head_object(
            Bucket=config.bucket, Key="a"), limits=slow)  # fmt: skip
    before = store_gate.requests

    now[0] += 10.0
    with pytest.raises(StorageUnavailableError):
        storage.get("rounds/a")

    assert store_gate.requests == before + 1


def test_requests_fail_at_once_while_the_store_is_away(
    storage: ObjectStorage, store_gate: StoreGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(storage._bucket, "_clock", lambda: now[0])
    store_gate.failing = 100
    with pytest.raises(StorageUnavailableError):
        storage.get("rounds/a")
    before = store_gate.requests

    for _ in range(20):
        with pytest.raises(StorageUnavailableError):
            storage.get("rounds/a")
    assert store_gate.requests == before

    store_gate.heal()
    now[0] += 10.0
    with pytest.raises(NotStoredError):
        storage.get("rounds/a")


def test_a_round_is_spooled_and_stored_later(
    storage: ObjectStorage, config: StorageConfig, store_gate: StoreGate
) -> None:
    store_gate.close()

    storage.put("rounds/000000/a", b"decision")

    assert storage.get("rounds/000000/a") == b"decision"
    assert list(storage.open_chunks("rounds/000000/a")) == [b"decision"]
    assert storage.state().spooled_bytes == 8
    with pytest.raises(StorageUnavailableError):
        other_host(config).get("rounds/000000/a")
    store_gate.open()
    wait_until(lambda: storage.state().spooled_bytes == 0, what="the spool is empty")
    assert other_host(config).get("rounds/000000/a") == b"decision"


def test_a_spool_survives_the_process(
    config: StorageConfig,
    storage: ObjectStorage,
    store_gate: StoreGate,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(storage._spool, "begin", lambda: None)
    store_gate.close()
    storage.put("rounds/a", b"decision")
    store_gate.open()

    later = ObjectStorage(config)
    later.store_spooled()

    wait_until(lambda: later.state().spooled_bytes == 0, what="the spool is empty")
    assert other_host(config).get("rounds/a") == b"decision"


def test_the_spool_is_bounded(config: StorageConfig, store_gate: StoreGate) -> None:
    storage = ObjectStorage(replace(config, spool_bytes=10))
    store_gate.close()
    storage.put("rounds/a", b"12345678")

    with pytest.raises(StorageUnavailableError, match=FULL):
        storage.put("rounds/b", b"123")

    assert storage.state().spooled_bytes == 8
    store_gate.open()
    wait_until(lambda: storage.state().spooled_bytes == 0, what="the spool is empty")


def test_a_deleted_file_is_not_stored_later(
    storage: ObjectStorage, store_gate: StoreGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage._spool, "begin", lambda: None)
    store_gate.close()
    storage.put("rounds/a", b"decision")
    store_gate.open()
    wait_until(lambda: not storage.state().reason, what="the store responds")

    storage.delete(["rounds/a"])

    assert storage.state().spooled_bytes == 0
    with pytest.raises(NotStoredError):
        storage.get("rounds/a")


def test_an_upload_is_refused_while_the_store_is_away(
    storage: ObjectStorage, store_gate: StoreGate, tmp_path: Path
) -> None:
    (tmp_path / "upload").write_bytes(b"archive")
    store_gate.close()

    with pytest.raises(StorageUnavailableError):
        storage.put_file("archives/a", tmp_path / "upload")

    assert storage.state().spooled_bytes == 0


def test_a_fetched_archive_is_verified_and_then_needs_no_store(
    storage: ObjectStorage, store_gate: StoreGate
) -> None:
    storage.put("archives/good", b"code")
    with pytest.raises(NotStoredError):
        storage.fetch("archives/good", sha256="0" * 64)
    assert not storage.local_path("archives/good").exists()
    digest = hashlib.sha256(b"code").hexdigest()
    storage.fetch("archives/good", sha256=digest)

    store_gate.close()

    assert storage.fetch("archives/good", sha256=digest).read_bytes() == b"code"
    with pytest.raises(StorageUnavailableError):
        storage.fetch("archives/other", sha256=digest)


def test_the_state_names_the_fault_and_its_start(
    storage: ObjectStorage, config: StorageConfig, store_gate: StoreGate
) -> None:
    assert storage.state().reason == ""
    store_gate.close()
    with pytest.raises(StorageUnavailableError):
        storage.get("rounds/a")

    state = storage.state()

    assert state.reason == UNREACHABLE
    assert state.since is not None
    store_gate.open()
    wait_until(lambda: storage.state().reason == "", what="the store responds")
    assert ObjectStorage(replace(config, bucket="missing-bucket")).state().reason == NO_BUCKET


def test_credentials_are_in_no_text(
    config: StorageConfig,
    storage: ObjectStorage,
    store_gate: StoreGate,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    store_gate.close()
    with pytest.raises(StorageUnavailableError) as failed:
        storage.get("rounds/a")
    storage.put("rounds/a", b"x")
    store_gate.open()
    wait_until(lambda: storage.state().spooled_bytes == 0, what="the spool is empty")

    own = [one.getMessage() for one in caplog.records if one.name.startswith("scheduling")]
    for text in (repr(config), repr(storage), storage.label, str(failed.value), *own):
        assert SECRET_KEY not in text
        assert ACCESS_KEY not in text
    assert own
