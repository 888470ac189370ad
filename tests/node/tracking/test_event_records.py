"""Records of event files: those of real writers are read exactly, any other bytes end cleanly."""

import math
import struct
from pathlib import Path

import pytest
from event_writer import TENSORBOARD, TENSORBOARDX, delimited, framed, scalar
from hypothesis import given
from hypothesis import strategies as st

from tessera.node.tracking.event_records import (
    MOST_RECORD_BYTES,
    MOST_TAGS,
    BrokenFileError,
    masked_crc,
    read_records,
)
from tessera.node.tracking.lines import Value


def test_the_checksum_is_crc32c_with_its_mask() -> None:
    crc = 0xE3069283  # the check value of CRC-32C for "123456789"

    assert masked_crc(b"123456789") == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_files_of_tensorboardx_are_read_to_their_end() -> None:
    piece = read_records(TENSORBOARDX, 0)

    assert piece.end == len(TENSORBOARDX)
    assert piece.values[0] == Value("loss/train", 1, 1700000000.25, 0.5)
    assert piece.values[1].step == 2
    assert math.isnan(piece.values[1].value)


def test_tensors_of_tensorboard_are_read_if_they_have_one_element() -> None:
    piece = read_records(TENSORBOARD, 0)

    assert piece.end == len(TENSORBOARD)
    assert piece.values == [
        Value("acc", 7, 1700000002.0, 0.875),
        Value("acc", 8, 1700000003.0, 2.5),
        Value("n", 10, 1700000004.0, -3.0),
    ]


@given(st.integers(0, len(TENSORBOARD)))
def test_a_file_that_is_still_written_is_read_in_pieces(cut: int) -> None:
    first = read_records(TENSORBOARD[:cut], 0)
    second = read_records(TENSORBOARD[first.end :], first.end)

    assert first.end <= cut
    assert first.values + second.values == read_records(TENSORBOARD, 0).values


def test_a_record_with_a_wrong_checksum_has_no_values() -> None:
    bad = bytearray(scalar("loss", 1.0, 1))
    bad[-6] ^= 1

    piece = read_records(bytes(bad) + scalar("loss", 2.0, 2), 100)

    assert [one.value for one in piece.values] == [2.0]
    assert piece.end == 100 + len(bad) + len(scalar("loss", 2.0, 2))


def test_a_large_record_is_skipped_without_being_read() -> None:
    size = MOST_RECORD_BYTES + 1
    record = framed(bytes(size))

    piece = read_records(record[:100], 0)

    assert (piece.values, piece.end) == ([], len(record))


def test_a_wrong_length_ends_the_file() -> None:
    with pytest.raises(BrokenFileError):
        read_records(bytes(64), 0)
    huge = struct.pack("<Q", 1 << 60)
    with pytest.raises(BrokenFileError):
        read_records(huge + struct.pack("<I", masked_crc(huge)), 0)


def test_a_record_has_a_bounded_number_of_values() -> None:
    one = delimited(1, delimited(1, b"x") + b"\x15" + struct.pack("<f", 1.0))
    event = b"\x10\x01" + delimited(5, one * (MOST_TAGS + 50))

    assert len(read_records(framed(event), 0).values) == MOST_TAGS


@given(st.binary(max_size=400))
def test_any_message_ends_without_an_error(content: bytes) -> None:
    piece = read_records(framed(content), 0)

    assert piece.end == len(framed(content))


def test_files_of_torch_are_read(tmp_path: Path) -> None:
    tensorboard = pytest.importorskip(
        "torch.utils.tensorboard", reason="torch with tensorboard is not installed"
    )
    writer = tensorboard.SummaryWriter(str(tmp_path))
    writer.add_scalar("loss", 0.25, 3)
    writer.close()
    (path,) = tmp_path.iterdir()

    values = read_records(path.read_bytes(), 0).values

    assert [(one.name, one.step, one.value) for one in values] == [("loss", 3, 0.25)]
