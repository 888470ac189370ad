"""Reads of the GPU driver: one child process at a time per node, with a deadline.

A process that hangs in a driver cannot be killed. It holds a lock until it ends; meanwhile no
other process starts.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

from tessera.node import amd, ascend, kernel, nvml, smi, system
from tessera.node.amd import AmdSmiReader, RocmSmiReader
from tessera.node.ascend import NpuSmiReader
from tessera.node.gpus import Gpu, GpuProcess, Health, Reader, Reading
from tessera.node.nvml import NvmlReader
from tessera.node.smi import SmiReader

LOAD_SECONDS, DETAIL_SECONDS, TOOL_SECONDS = 12.0, 60.0, 20.0
LOCK_SECONDS, LOAD_LOCK_SECONDS = 15.0, 5.0
"""Maximum waits for the lock in seconds; the control plane waits 20 s for the load."""
LOCK_FILE, LAST_FILE, TOOL_FILE = "driver.lock", "gpus.json", "gpu-tool.json"
DRIVER_VERSION = "/proc/driver/nvidia/version"
FILES = {DRIVER_VERSION: "NVIDIA", amd.DRIVER: "AMD", ascend.DRIVER: "Ascend"}
"""Files that exist while a driver is loaded."""
_TOOLS = ("nvidia-smi", "amd-smi", "rocm-smi", "npu-smi")


class DriverHungError(Exception):
    """The driver did not respond by the deadline, or an earlier read is past its deadline."""


class DriverBusyError(Exception):
    """An earlier read has not ended, and its deadline has not passed."""


class Answer(NamedTuple):
    """The report of a reader.

    Attributes:
        reader: name of the reader.
        closeness: socket and PCIe group of each GPU; None if unknown or not requested.
        nvlink: NVLink domain of each GPU, -1 without a link; likewise.
    """

    reader: str
    reading: Reading
    closeness: Optional[List[Tuple[int, int]]] = None
    nvlink: Optional[List[int]] = None


Readers = Callable[[Sequence[int]], Sequence[Reader]]


def readers(descriptors: Sequence[int]) -> List[Reader]:
    """Return the readers of this node in the order of preference."""
    bindings = nvml.bindings()
    found: List[Reader] = [] if bindings is None else [NvmlReader(bindings)]
    tools = (SmiReader, AmdSmiReader, RocmSmiReader, NpuSmiReader)
    return [*found, *(reader(descriptors) for reader in tools)]


def has_driver() -> bool:
    """Return whether a driver is installed."""
    path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return any(map(os.path.exists, FILES)) or any(system.which(one, path) for one in _TOOLS)


def read(
    root: str,
    *,
    in_detail: bool,
    seconds: Optional[float] = None,
    lock_seconds: Optional[float] = None,
    readers: Readers = readers,
) -> Optional[Answer]:
    """Read the GPUs of this node; None if no reader finds a driver.

    Args:
        root: the node's directory ``~/.tessera``.
        in_detail: also read health and topology, which need further calls.
        seconds: deadline, from the end of earlier reads; that of the kind of read if None.
        lock_seconds: the longest wait for earlier reads; that of the kind of read if None.
        readers: makes the readers; gets descriptors that each of their processes inherits.

    Raises:
        DriverBusyError: an earlier read has not ended.
        DriverHungError: the deadline has passed.
    """
    if seconds is None:
        seconds = DETAIL_SECONDS if in_detail else LOAD_SECONDS
    if lock_seconds is None:
        lock_seconds = LOCK_SECONDS if in_detail else LOAD_LOCK_SECONDS

    def work(lock: int) -> Optional[Answer]:
        return _ask(readers([lock]), in_detail=in_detail)

    answer = _parsed(_in_child(root, work, seconds, lock_seconds))
    return answer if answer is None or in_detail else _with_known_names(root, answer)


def _with_known_names(root: str, answer: Answer) -> Answer:
    """Return a short reading with the names that only a detailed one has."""
    if all(gpu.uuid for gpu in answer.reading.gpus):
        return answer
    last = stored(root)
    known = {gpu.pci_address: gpu.uuid for gpu in last.reading.gpus} if last else {}
    gpus = [
        gpu if gpu.uuid else gpu._replace(uuid=known.get(gpu.pci_address, ""))
        for gpu in answer.reading.gpus
    ]
    return answer._replace(reading=answer.reading._replace(gpus=gpus))


def tool_fault(root: str, command: Sequence[str], *, seconds: float = TOOL_SECONDS) -> str:
    """Run a tool that uses the driver; return an empty text, or the reason of its failure.

    While another read lasts, it is the result of the last run.
    """

    def work(lock: int) -> str:
        done = smi.run_tool(command, [lock])
        if done is None:
            return f"{command[0]} cannot be executed"
        lines = done[1].strip().splitlines()
        return "" if done[0] == 0 else (lines[-1][:300] if lines else f"exit code {done[0]}")

    try:
        fault = _in_child(root, work, seconds, LOCK_SECONDS)
    except DriverBusyError:
        return stored_tool_fault(root)
    except DriverHungError:
        return f"no response within {seconds:g} s"
    if fault is None:
        return f"{command[0]} was interrupted"
    content = json.dumps({"fault": fault}).encode("ascii")
    system.replace_file(os.path.join(root, TOOL_FILE), content, durable=False)
    return str(fault)


def stored_tool_fault(root: str) -> str:
    """Return the result of the last run of the tool that ended; empty if there is none."""
    found = system.read_json(os.path.join(root, TOOL_FILE)) or {}
    return str(found.get("fault") or "")


def _in_child(root: str, work: Callable[[int], Any], seconds: float, lock_seconds: float) -> Any:
    """Return the result of work in a child that uses the driver exclusively; None if it dies.

    Args:
        root: the node's directory ``~/.tessera``.
        work: gets the descriptor of the lock, which each process that it starts inherits.
        seconds: deadline of the work, from the moment when the lock was taken.
        lock_seconds: the longest wait for the lock.
    """
    lock = _lock(root, seconds, lock_seconds)
    end = time.monotonic() + seconds
    source, target = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(source)
        raise
    else:
        if pid == 0:
            _answer(target, lock, lambda: work(lock))
    finally:
        os.close(target)
        os.close(lock)
    try:
        received = _received(source, end)
    finally:
        os.close(source)
    if received is None or not system.reap(pid, end - time.monotonic()):
        for kill in (os.killpg, os.kill):
            try:
                kill(pid, signal.SIGKILL)
            except OSError:
                continue
        raise DriverHungError
    return json.loads(received or b"null")


def _lock(root: str, seconds: float, lock_seconds: float) -> int:
    """Take the lock of the driver, and write the deadline of this read into its file.

    The holders of the lock are the processes of one read.

    Raises:
        DriverBusyError: an earlier read holds it.
        DriverHungError: the earlier read is past its deadline.
    """
    os.makedirs(root, mode=0o700, exist_ok=True)
    path = os.path.join(root, LOCK_FILE)
    lock = system.lock_by(path, time.monotonic() + lock_seconds)
    if lock < 0:
        try:
            is_overdue = time.monotonic() >= float(system.read_text(path))
        except ValueError:
            is_overdue = False  # the process that holds the lock has not written the deadline yet
        raise DriverHungError if is_overdue else DriverBusyError
    os.ftruncate(lock, 0)
    os.write(lock, f"{time.monotonic() + seconds}".encode("ascii"))
    return lock


def _answer(target: int, lock: int, work: Callable[[], Any]) -> None:
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
            if not in_detail or not reading.gpus:
                return Answer(reader.name, reading)
            closeness = reader.closeness(reading.gpus)
            return Answer(reader.name, reading, closeness, reader.nvlink_domains(reading.gpus))
    return None


def _received(source: int, end: float) -> Optional[bytes]:
    """Read until the child has closed the pipe; None at the deadline."""
    received = b""
    poll = select.poll()
    poll.register(source, select.POLLIN)
    while True:
        if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
            return None
        piece = os.read(source, 1 << 16)
        if not piece:
            return received
        received += piece


def _parsed(found: Any) -> Optional[Answer]:
    """Parse an answer: named tuples are lists in JSON."""
    if found is None:
        return None
    reader, fields, closeness, nvlink = found
    reading = Reading._make(fields)
    reading = reading._replace(
        gpus=[Gpu._make((*facts, Health(*health))) for *facts, health in reading.gpus],
        processes=[GpuProcess._make(one) for one in reading.processes],
    )
    pairs = None if closeness is None else [(pair[0], pair[1]) for pair in closeness]
    return Answer(reader, reading, pairs, nvlink)


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
