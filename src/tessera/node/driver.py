"""Reads of the GPU driver: one child process at a time per node, with a deadline.

A process that hangs in a driver cannot be killed. It holds a lock until it ends, and as long as it
does, no other one starts.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import time
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

from tessera.node import kernel, nvml, system
from tessera.node.gpus import Gpu, Health, Reader, Reading
from tessera.node.nvml import NvmlReader
from tessera.node.smi import SmiReader

DEADLINE_SECONDS = 12.0
LOCK_FILE, LAST_FILE = "driver.lock", "gpus.json"
DRIVER_VERSION = "/proc/driver/nvidia/version"
_POLL_SECONDS = 0.02


class DriverHungError(Exception):
    """The driver did not answer by the deadline, or an earlier read has not ended."""


class Answer(NamedTuple):
    """What a reader reports.

    Attributes:
        reader: name of the reader.
        closeness: socket and PCIe group of each GPU; None if unknown or not requested.
    """

    reader: str
    reading: Reading
    closeness: Optional[List[Tuple[int, int]]] = None


Readers = Callable[[Sequence[int]], Sequence[Reader]]


def readers(descriptors: Sequence[int]) -> List[Reader]:
    """Return the readers of this node in the order of preference."""
    bindings = nvml.bindings()
    found: List[Reader] = [] if bindings is None else [NvmlReader(bindings)]
    return [*found, SmiReader(descriptors)]


def has_driver() -> bool:
    """Return whether there is something to read."""
    path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.path.exists(DRIVER_VERSION) or bool(system.which("nvidia-smi", path))


def read(
    root: str,
    *,
    in_detail: bool,
    seconds: float = DEADLINE_SECONDS,
    readers: Readers = readers,
) -> Optional[Answer]:
    """Read the GPUs of this node; None if no reader finds a driver.

    Args:
        root: the node's directory ``~/.tessera``.
        in_detail: also read health and topology, which need further calls.
        seconds: deadline.
        readers: makes the readers; gets descriptors that each of their processes inherits.

    Raises:
        DriverHungError: the deadline has passed.
    """
    end = time.monotonic() + seconds
    os.makedirs(root, mode=0o700, exist_ok=True)
    lock = _lock(os.path.join(root, LOCK_FILE), end)
    source, target = os.pipe()
    pid = os.fork()
    if pid == 0:
        _answer(target, lock, lambda: _ask(readers([lock]), in_detail=in_detail))
    os.close(target)
    os.close(lock)
    try:
        received = _received(source, end)
    finally:
        os.close(source)
    if received is None:
        for kill in (os.killpg, os.kill):
            try:
                kill(pid, signal.SIGKILL)
            except OSError:
                continue
        raise DriverHungError
    os.waitpid(pid, 0)
    return _parsed(json.loads(received or b"null"))


def _lock(path: str, end: float) -> int:
    """Take the lock of the driver; its holders are the processes of one read.

    Raises:
        DriverHungError: an earlier read still holds it at the deadline.
    """
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() >= end:
                os.close(lock)
                raise DriverHungError from None
            time.sleep(_POLL_SECONDS)
        else:
            return lock


def _answer(target: int, lock: int, work: Callable[[], Optional[Answer]]) -> None:
    """In the child: write the answer, and exit."""
    try:
        os.setsid()
        system.redirect_standard_streams()
        kernel.close_others({target, lock})
        system.write_all(target, json.dumps(work()).encode("ascii"))
    except BaseException:
        os._exit(1)
    os._exit(0)


def _ask(found: Sequence[Reader], *, in_detail: bool) -> Optional[Answer]:
    for reader in found:
        reading = reader.read(in_detail=in_detail)
        if reading is not None:
            closeness = reader.closeness(reading.gpus) if in_detail and reading.gpus else None
            return Answer(reader.name, reading, closeness)
    return None


def _received(source: int, end: float) -> Optional[bytes]:
    """Read until the child has closed the pipe; None at the deadline."""
    received = b""
    while True:
        ready, _, _ = select.select([source], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            return None
        piece = os.read(source, 1 << 16)
        if not piece:
            return received
        received += piece


def _parsed(found: Any) -> Optional[Answer]:
    """Parse an answer: named tuples are lists in JSON."""
    if found is None:
        return None
    reader, (gpus, *rest), closeness = found
    reading = Reading([Gpu._make((*fields, Health(*health))) for *fields, health in gpus], *rest)
    pairs = None if closeness is None else [(pair[0], pair[1]) for pair in closeness]
    return Answer(reader, reading, pairs)


def store(root: str, answer: Answer) -> None:
    """Store an answer, for the inventory while the driver hangs."""
    content = json.dumps({"answer": answer}).encode("ascii")
    system.replace_file(os.path.join(root, LAST_FILE), content, durable=False)


def stored(root: str) -> Optional[Answer]:
    """Return the last answer; None if there is none."""
    found = system.read_json(os.path.join(root, LAST_FILE)) or {}
    try:
        return _parsed(found.get("answer"))
    except (TypeError, ValueError):
        return None
