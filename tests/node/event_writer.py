"""Event files of TensorBoard: files of the real writer, and a writer of our own for tests."""

import struct
from pathlib import Path

from tessera.node.tracking.event_records import masked_crc

TENSORBOARDX = bytes.fromhex(
    "1800000000000000a37f4b220951dbf8d4b9c2da411a0d627261696e2e4576656e743a3240f25c3e2000"
    "00000000000029eda9500900001040fc54d94110012a130a110a0a6c6f73732f747261696e150000003f"
    "d3101c6d200000000000000029eda9500900004040fc54d94110022a130a110a0a6c6f73732f74726169"
    "6e150000c07f3f8ca942"
)
"""Written by tensorboardX 2.6: ``loss/train`` 0.5 at step 1, NaN at step 2."""
TENSORBOARD = bytes.fromhex(
    "4800000000000000fe92489d096d2ffdd7b9c2da411a0d627261696e2e4576656e743a32522e0a2c7465"
    "6e736f72626f6172642e73756d6d6172792e7772697465722e6576656e745f66696c655f777269746572"
    "b69d8e212f000000000000006d5d1d500900008040fc54d94110072a220a200a03616363420a08011200"
    "2a040000603f4a0d0a090a077363616c6172732001ee282f4c2400000000000000422b804d090000c040"
    "fc54d94110082a170a150a03616363420e08021200220800000000000004408f2a03452c000000000000"
    "00f4aecc45090000c040fc54d94110092a1f0a1d0a0376656342160801120412020803220c0000803f00"
    "0000400000404012d37e122400000000000000422b804d0900000041fc54d941100a2a170a150a016e42"
    "1008091200520afdffffffffffffffff01033d8442"
)
"""Written by tensorboard 2: ``acc`` 0.875 (float_val), 2.5 (content), a vector, ``n`` -3."""


def framed(content: bytes) -> bytes:
    """Return a record with its checksums."""
    head = struct.pack("<Q", len(content))
    tail = struct.pack("<I", masked_crc(content))
    return head + struct.pack("<I", masked_crc(head)) + content + tail


def varint(number: int) -> bytes:
    """Return a number in base 128."""
    found = b""
    while number > 0x7F:
        found += bytes([number & 0x7F | 0x80])
        number >>= 7
    return found + bytes([number])


def delimited(field: int, content: bytes) -> bytes:
    """Return a field of bytes."""
    return varint(field << 3 | 2) + varint(len(content)) + content


def scalar(tag: str, value: float, step: int, time: float = 1.7e9) -> bytes:
    """Return the record of one scalar."""
    found = delimited(1, tag.encode()) + b"\x15" + struct.pack("<f", value)
    event = b"\x09" + struct.pack("<d", time) + b"\x10" + varint(step)
    return framed(event + delimited(5, delimited(1, found)))


def append(path: Path, *records: bytes) -> None:
    """Append records to a file, whose directory is created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(b"".join(records))
