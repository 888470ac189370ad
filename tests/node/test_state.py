"""The file of a run: a reader sees the old or the new status, whatever happens to a writer."""

import json
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera import protocol
from tessera.node import runs, state
from tessera.protocol import ExitRecord, RunStatus

RUN_ID = "0123456789abcdef.worker.0"


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A file with its first status."""
    found = str(tmp_path / "state")
    make(found, b'{"n": 0}')
    return found


def make(path: str, content: bytes, spec: bytes = b'{"command": "true"}') -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        state.begin(descriptor, content, spec, ["a" * 64])
    finally:
        os.close(descriptor)


def test_the_newest_status_is_read_and_the_notes_and_the_spec_stay(path: str) -> None:
    size = Path(path).stat().st_size
    for number in range(1, 6):
        assert state.write(path, b'{"n": %d}' % number, durable=number == 5)
        assert state.load(path).found == {"n": number}
    state.renew(path, 12.5)
    state.note_version(path, "b" * 64)
    state.note_version(path, "b" * 64)

    assert state.lease(path) == 12.5
    assert state.versions(path) == ["a" * 64, "b" * 64]
    assert state.load_spec(path) == {"command": "true"}
    assert state.load(path).found == {"n": 5}
    assert Path(path).stat().st_size == size


@given(cut=st.integers(0, state.SLOT_BYTES), junk=st.binary(min_size=1, max_size=40))
def test_a_write_that_was_cut_off_leaves_the_status_before_it(
    tmp_path_factory: pytest.TempPathFactory, cut: int, junk: bytes
) -> None:
    path = str(tmp_path_factory.mktemp("cut") / "state")
    make(path, b'{"n": 0}')
    state.write(path, b'{"n": 1}', durable=False)
    before = Path(path).read_bytes()
    state.write(path, b'{"n": 2}', durable=False)
    after = Path(path).read_bytes()
    begun = state.NOTES_BYTES  # the third status goes where the first was
    torn = after[: begun + cut] + junk + before[begun + cut + len(junk) :]
    Path(path).write_bytes(torn)

    assert state.load(path).found in ({"n": 1}, {"n": 2})


@pytest.mark.parametrize("after", range(3))
def test_a_preparation_that_is_cut_off_leaves_no_status_without_its_spec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    path = str(tmp_path / "state")
    write = os.pwrite
    left = [state.FILE_BYTES - 10, 20, 5][:after]  # bytes of each write that comes to its end

    def write_some(descriptor: int, content: bytes, at: int) -> int:
        if not left:
            raise KeyboardInterrupt
        return write(descriptor, content[: left.pop(0)], at)

    monkeypatch.setattr(os, "pwrite", write_some)
    with pytest.raises(KeyboardInterrupt):
        make(path, b'{"n": 0}', b'{"command": "%s"}' % (b"x" * 5000))

    assert state.load(path) == (None, False)

    monkeypatch.setattr(os, "pwrite", write)
    make(path, b'{"n": 1}')
    assert state.load(path).found == {"n": 1}
    assert state.load_spec(path) == {"command": "true"}


def test_a_file_without_a_status_is_distinguished_from_one_that_is_damaged(tmp_path: Path) -> None:
    missing, empty, damaged = (str(tmp_path / name) for name in ("a", "b", "c"))
    Path(empty).touch()
    make(damaged, b'{"n": 0}')
    content = bytearray(Path(damaged).read_bytes())
    content[state.NOTES_BYTES + 20] ^= 1
    Path(damaged).write_bytes(content)

    assert [tuple(state.load(path)) for path in (missing, empty, damaged)] == [
        (None, False),
        (None, False),
        (None, True),
    ]
    assert not any(state.write(path, b"{}", durable=False) for path in (missing, empty, damaged))


def test_readers_never_see_half_of_a_status(path: str) -> None:
    seen: set[int] = set()
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            found = state.load(path).found
            assert found is not None
            assert len(set(found["text"])) <= 1
            seen.add(found["n"])

    state.write(path, json.dumps({"n": 0, "text": ""}).encode(), durable=False)
    reader = threading.Thread(target=read)
    reader.start()
    for number in range(400):
        text = "xyz"[number % 3] * (6000 if number % 2 else 10)
        state.write(path, json.dumps({"n": number, "text": text}).encode(), durable=False)
    done.set()
    reader.join()

    assert seen


def test_a_status_that_is_too_long_is_cut_to_its_place(tmp_path: Path) -> None:
    store = runs.Store(str(tmp_path))
    store.create()
    run = store.run(RUN_ID)
    Path(run.path).mkdir()
    record = ExitRecord(cause="start-failed", failure="node", at=1.0, message="\u20ac" * 3000)
    status = RunStatus(
        RUN_ID, protocol.EXITED, exit=record, warnings=["\u20ac" * 200] * 50, notice="\u20ac" * 66
    )

    run.record(status)

    found = run.recorded()
    assert found.exit is not None
    assert found.exit.message == "\u20ac" * runs.CUT_TEXT
    assert len(found.warnings) == 8


def test_any_status_fits_into_its_place() -> None:
    text = "\U0001f600" * 3000  # twelve bytes each
    record = ExitRecord(cause="stopped", failure="user", at=1.0, message=text)
    status = RunStatus(
        RUN_ID,
        protocol.EXITED,
        exit=record,
        warnings=[text] * 50,
        notice=text[:200],
        hostname=text[:255],
    )

    assert len(runs.status_text(status)) <= state.SLOT_BYTES - runs.SLOT_MARGIN


def test_another_file_in_its_place_holds_nothing(tmp_path: Path) -> None:
    fifo, link = tmp_path / "fifo", tmp_path / "link"
    os.mkfifo(fifo)
    make(str(tmp_path / "real"), b'{"n": 0}')
    link.symlink_to(tmp_path / "real")

    assert state.load(str(fifo)).found is None
    assert state.load(str(link)).found is None
