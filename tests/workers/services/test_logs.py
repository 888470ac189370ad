"""Logs on disk: whatever is written in whatever pieces is read as one."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.services import logs
from workers.services.logs import Extent

CAP = 1 << 40


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    # A property of stored files, no setting; whole segments are too large for many examples.
    monkeypatch.setattr(logs, "SEGMENT_BYTES", 10)


@given(pieces=st.lists(st.binary(min_size=1, max_size=35), max_size=12), seed=st.randoms())
def test_pieces_make_one_log_that_reads_the_same_from_every_offset(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], seed: object
) -> None:
    log = tmp_path_factory.mktemp("logs") / "a.log"
    offset = 0
    for piece in pieces:
        logs.write(log, offset=offset, data=piece, cap_bytes=CAP)
        offset += len(piece)
    whole = b"".join(pieces)

    begin = seed.randint(0, len(whole) + 3)  # type: ignore[attr-defined]
    limit = seed.randint(0, 40)  # type: ignore[attr-defined]

    start, found = logs.read(log, offset=begin, limit=limit)
    assert found == whole[begin : begin + limit]
    assert start == begin
    assert logs.extent(log) == Extent(0, len(whole))


def test_a_piece_that_is_written_twice_changes_nothing(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    logs.write(log, offset=0, data=b"0123456789abcdef", cap_bytes=CAP)

    logs.write(log, offset=5, data=b"56789ab", cap_bytes=CAP)

    assert logs.read(log, offset=0, limit=99) == (0, b"0123456789abcdef")


def test_only_the_newest_bytes_are_kept(tmp_path: Path) -> None:
    log = tmp_path / "a.log"

    for offset in range(0, 100, 5):
        kept = logs.write(log, offset=offset, data=b"%05d" % offset, cap_bytes=25)

    assert kept == Extent(70, 100)
    assert logs.read(log, offset=0, limit=7) == (70, b"0007000")
    assert len(list(log.iterdir())) == 3


def test_what_lies_before_the_first_byte_is_not_read(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    logs.write(log, offset=26, data=b"after the gap", cap_bytes=CAP)

    assert logs.read(log, offset=0, limit=99, first=26) == (26, b"after the gap")
    assert logs.extent(log, first=26) == Extent(26, 39)


def test_a_log_that_was_never_written_is_empty(tmp_path: Path) -> None:
    log = tmp_path / "absent.log"

    assert logs.extent(log) == Extent(0, 0)
    assert logs.read(log, offset=0, limit=9) == (0, b"")
    logs.delete(log)


def test_logs_can_be_read_by_their_owner_alone(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    logs.write(log, offset=0, data=b"x", cap_bytes=CAP)

    (segment,) = log.iterdir()
    assert segment.stat().st_mode & 0o077 == 0
