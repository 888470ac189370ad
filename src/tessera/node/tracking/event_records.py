"""Records of TensorBoard's event files: framing with checksums, and scalar values.

A record is ``uint64 length``, ``uint32 masked CRC32C of the length``, the data, and ``uint32
masked CRC32C of the data``, all little-endian. The data are a message ``Event`` in the wire
format of protocol buffers, of which only the fields of scalars are read.
"""

from __future__ import annotations

import struct
from typing import Iterator, List, NamedTuple, Optional, Tuple, Union

from tessera.node.tracking.lines import Value

HEAD_BYTES, TAIL_BYTES = 12, 4
MOST_RECORD_BYTES = 32 << 10
"""Larger records contain images or histograms, and are skipped."""
LARGEST_RECORD = 1 << 40
MOST_TAGS = 256
"""Values of a record that are read."""
LARGEST_STEP = 1 << 53
_HEAD = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_POLYNOMIAL, _MASK_DELTA, _WORD = 0x82F63B78, 0xA282EAD8, 0xFFFFFFFF
_FIXED = {1: 8, 5: 4}
_VARINT, _BYTES = 0, 2
_FORMATS = {1: "<f", 2: "<d", 3: "<i", 9: "<q", 19: "<e"}
"""Formats of ``tensor_content`` by the type of a tensor: float, double, int32, int64, half."""
_LISTS = {(1, 5): "<f", (2, 6): "<d"}
"""Formats of packed values by type and field; whole numbers are varints."""
_WHOLE_LISTS = ((3, 7), (9, 10))


class BrokenFileError(Exception):
    """The bytes are not a sequence of records."""


class Piece(NamedTuple):
    """The values in some bytes of a file, and the offset of the next record."""

    values: List[Value]
    end: int


def _table() -> Tuple[int, ...]:
    found = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (_POLYNOMIAL if crc & 1 else 0)
        found.append(crc)
    return tuple(found)


_TABLE = _table()


def masked_crc(data: bytes) -> int:
    """Return the masked CRC32C of the framing."""
    crc = _WORD
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= _WORD
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & _WORD


def read_records(data: bytes, offset: int) -> Piece:
    """Read the whole records in some bytes.

    A large record is skipped by its length, so the end may lie behind the bytes. Records whose
    data have a wrong checksum, or are not valid, have no values.

    Args:
        data: bytes of the file, from the start of a record.
        offset: their place in the file.

    Raises:
        BrokenFileError: a length is not valid; the file has no further readable record.
    """
    values: List[Value] = []
    place = 0
    while len(data) - place >= HEAD_BYTES:
        length, crc = _HEAD.unpack_from(data, place)
        if length > LARGEST_RECORD or masked_crc(data[place : place + 8]) != crc:
            raise BrokenFileError(f"no record at byte {offset + place}")
        end = place + HEAD_BYTES + length + TAIL_BYTES
        if length > MOST_RECORD_BYTES:
            place = end
            continue
        if end > len(data):
            break
        content = data[place + HEAD_BYTES : end - TAIL_BYTES]
        if masked_crc(content) == _CRC.unpack_from(data, end - TAIL_BYTES)[0]:
            values += _values_or_none(content)
        place = end
    return Piece(values, offset + place)


def _values_or_none(content: bytes) -> List[Value]:
    try:
        return list(values_of(content))
    except (ValueError, IndexError, struct.error):
        return []


def values_of(event: bytes) -> Iterator[Value]:
    """Yield the scalars of a message ``Event``; their names are tags, not yet checked.

    Raises:
        ValueError, IndexError: the message is not valid.
    """
    time, step, summary = 0.0, 0, b""
    for number, found in _fields(event):
        if number == 1 and isinstance(found, bytes) and len(found) == 8:
            (time,) = struct.unpack("<d", found)
        elif number == 2 and isinstance(found, int):
            step = found
        elif number == 5 and isinstance(found, bytes):
            summary = found
    if not 0 <= step <= LARGEST_STEP:
        return
    count = 0
    for number, found in _fields(summary):
        if number != 1 or not isinstance(found, bytes):
            continue
        count += 1
        if count > MOST_TAGS:
            return
        tag, value = _tagged(found)
        if tag and value is not None:
            yield Value(tag, step, time, value)


def _tagged(message: bytes) -> Tuple[str, Optional[float]]:
    """Return tag and value of a message ``Summary.Value``; None if it is not a scalar."""
    tag, value = "", None
    for number, found in _fields(message):
        if not isinstance(found, bytes):
            continue
        if number == 1:
            tag = found.decode("utf-8", "replace")
        elif number == 2 and len(found) == 4:
            value = _rounded(struct.unpack("<f", found)[0])
        elif number == 8:
            value = _scalar(found)
    return tag, value


def _scalar(tensor: bytes) -> Optional[float]:
    """Return the number of a message ``TensorProto`` with one element; None for others."""
    kind, found = 0, None
    fields = list(_fields(tensor))
    for number, content in fields:
        if number == 1 and isinstance(content, int):
            kind = content
        elif number == 2 and isinstance(content, bytes) and not _has_one_element(content):
            return None
    for number, content in fields:
        if number == 4 and isinstance(content, bytes):
            found = _number(_FORMATS.get(kind, ""), content)
        elif isinstance(content, bytes) and (kind, number) in _LISTS:
            found = _number(_LISTS[kind, number], content)
        elif (kind, number) in _WHOLE_LISTS:
            whole = _varint(content, 0)[0] if isinstance(content, bytes) else content
            found = float(whole - (1 << 64) if whole >> 63 else whole)
    return _rounded(found) if found is not None and kind in (1, 19) else found


def _number(form: str, content: bytes) -> Optional[float]:
    if not form or len(content) != struct.calcsize(form):
        return None
    return float(struct.unpack(form, content)[0])


def _rounded(value: float) -> float:
    """Return a number of single precision without the digits that it does not have."""
    return float(f"{value:.8g}")


def _has_one_element(shape: bytes) -> bool:
    for number, dimension in _fields(shape):
        if number == 2 and isinstance(dimension, bytes):
            sizes = [size for field, size in _fields(dimension) if field == 1]
            if sizes != [1]:
                return False
        elif number == 3:
            return False  # the rank is unknown
    return True


def _fields(message: bytes) -> Iterator[Tuple[int, Union[int, bytes]]]:
    """Yield number and content of each field; fixed-size fields as bytes.

    Raises:
        ValueError, IndexError: the message is not valid.
    """
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, place = _varint(message, place)
            yield number, value
            continue
        if kind == _BYTES:
            size, place = _varint(message, place)
        elif kind in _FIXED:
            size = _FIXED[kind]
        else:
            raise ValueError(f"wire type {kind}")
        if size > len(message) - place:
            raise ValueError("the message is cut")
        yield number, message[place : place + size]
        place += size


def _varint(message: bytes, place: int) -> Tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & ((1 << 64) - 1), place
    raise ValueError("a number is too long")
