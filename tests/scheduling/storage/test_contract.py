"""The contract of file storage: the directory and the object store pass the same tests."""

import hashlib
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduling.storage.base import Extent, FileStorage, LogRange, NotStoredError
from scheduling.storage.directory import DirectoryStorage

CAP = 1 << 40
LOG = "7/1/worker-0.log"
JOB_IDS = count(1000)
PER_EXAMPLE = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def new_log() -> str:
    return f"{next(JOB_IDS)}/1/worker-0.log"


def test_a_file_is_read_as_it_was_written(storage: FileStorage) -> None:
    storage.put("rounds/000000/a.json", b"first")
    storage.put("rounds/000000/a.json", b"second")

    assert storage.get("rounds/000000/a.json") == b"second"
    assert b"".join(storage.open_chunks("rounds/000000/a.json")) == b"second"
    found = storage.stat("rounds/000000/a.json")
    assert found is not None
    assert found.size == 6
    assert abs(found.modified_at - datetime.now(UTC)) < timedelta(minutes=1)


def test_a_missing_file_is_not_stored(storage: FileStorage) -> None:
    with pytest.raises(NotStoredError):
        storage.get("rounds/a")
    with pytest.raises(NotStoredError):
        list(storage.open_chunks("rounds/a"))
    with pytest.raises(NotStoredError):
        storage.fetch("archives/a", sha256="0" * 64)
    assert storage.stat("rounds/a") is None
    storage.touch("rounds/a")
    storage.delete(["rounds/a"])
    assert list(storage.files("rounds")) == []


@pytest.mark.parametrize("name", ["", "/a", "../a", "a/../../b", "a//b", "a b", "x" * 600, "a/."])
def test_names_outside_the_storage_are_refused(storage: FileStorage, name: str) -> None:
    with pytest.raises(ValueError, match="valid name"):
        storage.put(name, b"x")
    with pytest.raises(ValueError, match="valid name"):
        storage.get(name)
    with pytest.raises(ValueError, match="valid name"):
        storage.logs.read(name, offset=0, limit=1)


def test_files_below_a_directory_are_listed_in_order(storage: FileStorage) -> None:
    for name in ("rounds/2", "rounds/1/b", "roundsx/3", "archives/c"):
        storage.put(name, name.encode())

    assert [(one.name, one.size) for one in storage.files("rounds")] == [
        ("rounds/1/b", 10),
        ("rounds/2", 8),
    ]
    storage.delete(["rounds/2", "rounds/none"])
    assert [one.name for one in storage.files("rounds")] == ["rounds/1/b"]


def test_a_local_file_is_stored_and_fetched(storage: FileStorage, tmp_path: Path) -> None:
    content = bytes(range(256)) * 9000
    (tmp_path / "upload").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()

    storage.put_file(f"archives/{digest}", tmp_path / "upload")

    for _ in range(2):
        fetched = storage.fetch(f"archives/{digest}", sha256=digest)
        assert fetched == storage.local_path(f"archives/{digest}")
        assert fetched.read_bytes() == content
    before = storage.stat(f"archives/{digest}")
    storage.touch(f"archives/{digest}")
    after = storage.stat(f"archives/{digest}")
    assert before is not None
    assert after is not None
    assert (after.size, after.modified_at >= before.modified_at) == (len(content), True)


@PER_EXAMPLE
@given(pieces=st.lists(st.binary(min_size=1, max_size=35), max_size=12), draw=st.data())
def test_pieces_make_one_log_that_reads_the_same_from_every_offset(
    storage: FileStorage, pieces: list[bytes], draw: st.DataObject
) -> None:
    logs, log, offset = storage.logs, new_log(), 0
    for piece in pieces:
        logs.write(log, offset=offset, data=piece, cap_bytes=CAP)
        offset += len(piece)
    whole = b"".join(pieces)

    begin = draw.draw(st.integers(0, len(whole) + 3))
    limit = draw.draw(st.integers(0, 40))
    found = logs.read(log, offset=begin, limit=limit)

    assert found == LogRange(Extent(0, len(whole)), begin, whole[begin : begin + limit])
    assert logs.extent(log) == Extent(0, len(whole))
    logs.seal(log)
    assert logs.read(log, offset=0, limit=1 << 20).data == whole


@PER_EXAMPLE
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(1, 23)),
            st.tuples(st.just("repeat"), st.integers(1, 30)),
            st.tuples(st.just("seal"), st.just(0)),
        ),
        max_size=40,
    ),
    cap=st.sampled_from([CAP, 25, 40]),
)
def test_a_log_agrees_with_a_model(
    storage: FileStorage, steps: list[tuple[str, int]], cap: int
) -> None:
    """The model: bytes that are appended, repeated writes, and whole segments that are dropped."""
    logs, log, whole, first = storage.logs, new_log(), b"", 0
    for kind, size in steps:
        if kind == "append":
            data = bytes((len(whole) + at) % 251 for at in range(size))
            logs.write(log, offset=len(whole), data=data, cap_bytes=cap)
            whole += data
        elif kind == "repeat" and whole:
            begin = max(first, len(whole) - size)
            logs.write(log, offset=begin, data=whole[begin:], cap_bytes=cap)
        elif kind == "seal":
            logs.seal(log)
        if kind in ("append", "repeat"):
            first = max(first, max(0, len(whole) - cap) // 10 * 10)
        assert logs.extent(log) == Extent(first, len(whole))
        found = logs.read(log, offset=0, limit=1 << 20)
        assert (found.offset, found.data) == (first, whole[first:])


def test_a_piece_that_is_written_twice_changes_nothing(storage: FileStorage) -> None:
    storage.logs.write(LOG, offset=0, data=b"0123456789abcdef", cap_bytes=CAP)

    storage.logs.write(LOG, offset=5, data=b"56789ab", cap_bytes=CAP)

    assert storage.logs.read(LOG, offset=0, limit=99).data == b"0123456789abcdef"


def test_only_the_newest_bytes_are_kept(storage: FileStorage) -> None:
    for offset in range(0, 100, 5):
        kept = storage.logs.write(LOG, offset=offset, data=b"%05d" % offset, cap_bytes=25)

    assert kept == Extent(70, 100)
    found = storage.logs.read(LOG, offset=0, limit=7)
    assert (found.offset, found.data) == (70, b"0007000")
    assert len(list(storage.files(f"logs/{LOG}"))) == 3


def test_a_log_continues_after_a_gap(storage: FileStorage) -> None:
    storage.logs.write(LOG, offset=0, data=b"old", cap_bytes=CAP)
    storage.logs.write(LOG, offset=26, data=b"after the gap", cap_bytes=CAP)
    storage.logs.forget_before(LOG, 26)

    found = storage.logs.read(LOG, offset=0, limit=99, first=26)
    assert (found.offset, found.data) == (26, b"after the gap")
    assert storage.logs.extent(LOG, first=26) == Extent(26, 39)


def test_a_log_that_was_never_written_is_empty(storage: FileStorage) -> None:
    assert storage.logs.extent(LOG) == Extent(0, 0)
    assert storage.logs.extent(LOG, first=5) == Extent(5, 5)
    assert storage.logs.read(LOG, offset=0, limit=9) == LogRange(Extent(0, 0), 0, b"")
    storage.logs.seal(LOG)
    storage.logs.delete(LOG)


def test_logs_are_listed_and_deleted_by_job(storage: FileStorage) -> None:
    for path in ("7/1/worker-0.log", "7/2/worker-1.log", "12/1/ps-0.log"):
        storage.logs.write(path, offset=0, data=b"text", cap_bytes=CAP)

    assert storage.logs.job_ids() == {7, 12}
    assert list(storage.logs.paths(7)) == ["7/1/worker-0.log", "7/2/worker-1.log"]
    storage.logs.delete("7/2/worker-1.log")
    assert list(storage.logs.paths(7)) == ["7/1/worker-0.log"]
    storage.logs.delete_job(7)
    assert storage.logs.job_ids() == {12}
    assert storage.logs.read("12/1/ps-0.log", offset=0, limit=9).data == b"text"


def test_stored_files_can_be_read_by_their_owner_alone(tmp_path: Path) -> None:
    DirectoryStorage(tmp_path).logs.write(LOG, offset=0, data=b"x", cap_bytes=CAP)

    (segment,) = (tmp_path / "logs" / LOG).iterdir()
    assert segment.name == "0000000000000000"
    assert segment.stat().st_mode & 0o077 == 0
