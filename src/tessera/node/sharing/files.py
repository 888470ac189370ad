"""Files by which holder, coordinator and guests of a device communicate, in their exact formats.

``devices/<device>/coordinator``
    Locked by the holder's runner while it coordinates; a JSON object: ``run_id``, ``pid``,
    ``start``.
``devices/<device>/orders.json``
    Orders of the control plane: ``version``, ``number``, ``holder_run_id``, ``slowdown``,
    ``guests`` (``run_id``, ``slot``, ``floor``, ``most``), ``drain``.
``devices/<device>/state.json``
    State of the coordinator for the telemetry, once a second.
``runs/<guest>/bound`` and ``runs/<guest>/job/bound.json``
    Bound of a guest, for its runner and for its library: see ``bounds``; also ``host`` (the
    holder's phase page, or null), ``why``, ``leave`` (the guest has to leave the device) and
    ``lifted`` (it has become the holder).
``runs/<guest>/frozen``
    Exists while the guest's runner has frozen its processes.
``runs/<holder>/job/phase``
    A page: byte 0 is 1 while the holder uses the device, else 0; byte 1 is 1 while it is short
    of memory; bytes 8 to 15 are the boot clock of the last change of byte 0, in nanoseconds;
    bytes 16 to 23 are the length of the latest gap, so that a guest that reads seldom knows it.
``runs/<holder>/job/shared``
    Exists while the device has guests: the holder's library then reports each step.

A file that is missing, malformed or too large counts as missing, which means closed. All are
read without following links, as jobs can replace those in ``job``.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import re
import struct
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from tessera.device_sharing import DeviceOrder, GuestOrder
from tessera.node import system
from tessera.node.sharing.bounds import Bound
from tessera.node.sharing.gaps import StepPhase
from tessera.wire import ProtocolError

VERSION = 1
DEVICES_DIR = "devices"
COORDINATOR_FILE, ORDERS_FILE, DEVICE_STATE_FILE = "coordinator", "orders.json", "state.json"
BOUND_FILE, FROZEN_FILE = "bound", "frozen"
PHASE_IN_SANDBOX = "/tessera/host/phase"
PAGE_BYTES = 4096
_PAGE = struct.Struct("=BB6xQQ")
_MOST_BYTES = 16 << 10
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def device_dir(root: str, number: int, uuid: str = "") -> str:
    """Return the directory of a device: by its UUID, or by its number if it has none.

    Args:
        root: the node's directory ``~/.tessera``.
        number: number of the device.
        uuid: its UUID; empty for a declared slot.
    """
    name = uuid if _PLAIN.fullmatch(uuid) else f"slot-{number}"
    return os.path.join(root, DEVICES_DIR, name)


def read_document(path: str) -> Optional[Dict[str, Any]]:
    """Read a small JSON object; None for anything else."""
    try:
        descriptor = os.open(path, _READ)
    except OSError:
        return None
    try:
        content = os.read(descriptor, _MOST_BYTES + 1)
        found = json.loads(content) if len(content) <= _MOST_BYTES else None
    except (OSError, ValueError, RecursionError):
        return None
    finally:
        os.close(descriptor)
    return found if isinstance(found, dict) else None


def write_document(path: str, document: Dict[str, Any], *, mode: int = 0o600) -> bool:
    """Replace a file by a document; False if that fails, as on a full disk."""
    try:
        system.replace_file(path, json.dumps(document).encode("ascii"), mode=mode)
    except OSError:
        return False
    return True


def bound_document(
    bound: Bound,
    *,
    host: Optional[str] = None,
    why: str = "",
    leave: bool = False,
    lifted: bool = False,
) -> Dict[str, Any]:
    """Build the document of a bound.

    Args:
        bound: the bound.
        host: path of the holder's phase page as the guest sees it; None if it may not see it.
        why: rule that moved the gate, or reason for which the guest has to leave.
        leave: whether it has to.
        lifted: whether the run has become the holder.
    """
    fields = {"host": host, "why": why, "leave": leave, "lifted": lifted}
    return {"version": VERSION, **bound._asdict(), **fields}


# -- orders ---------------------------------------------------------------------------------------


class Orders(NamedTuple):
    """Orders for the coordinator of a device; the highest number is valid."""

    number: int
    holder_run_id: str
    order: DeviceOrder


def orders_document(orders: Orders) -> Dict[str, Any]:
    """Build the document of orders."""
    document = orders.order.to_json()
    return {
        "version": VERSION,
        "number": orders.number,
        "holder_run_id": orders.holder_run_id,
        **document,
    }


def read_orders(directory: str) -> Optional[Orders]:
    """Read the orders of a device; None without valid ones."""
    document = read_document(os.path.join(directory, ORDERS_FILE))
    if document is None or document.pop("version", None) != VERSION:
        return None
    number, holder = document.pop("number", None), document.pop("holder_run_id", None)
    if type(number) is not int or number < 0 or not isinstance(holder, str):
        return None
    try:
        return Orders(number, holder, DeviceOrder.from_json(document))
    except ProtocolError:
        return None


def guests_of(orders: Optional[Orders]) -> List[GuestOrder]:
    """Return the guests of a device by slot; none without orders."""
    return [] if orders is None else sorted(orders.order.guests, key=lambda one: one.slot)


# -- the coordinator's lock -----------------------------------------------------------------------


def lock_device(directory: str, run_id: str, pid: int, start: Optional[int]) -> Optional[int]:
    """Lock a device and store its coordinator; None if another process has the lock.

    Returns:
        The descriptor; closing it releases the lock.
    """
    os.makedirs(directory, mode=0o700, exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(os.path.join(directory, COORDINATOR_FILE), flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        holder = {"run_id": run_id, "pid": pid, "start": start}
        os.pwrite(descriptor, json.dumps(holder).encode("ascii"), 0)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def coordinator_of(directory: str) -> str:
    """Return the run whose runner coordinates a device; empty if the lock is free."""
    path = os.path.join(directory, COORDINATOR_FILE)
    try:
        descriptor = os.open(path, _READ)
    except OSError:
        return ""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        holder = read_document(path) or {}
        return str(holder.get("run_id") or "")
    finally:
        os.close(descriptor)
    return ""


# -- the phase page -------------------------------------------------------------------------------


class PhasePage:
    """The holder's phase page, mapped; written by its library, read by guests.

    Args:
        path: the file.
        create: create it, for writing.

    Raises:
        OSError: the page cannot be opened.
        ValueError: the file is too short.
    """

    def __init__(self, path: str, *, create: bool = False) -> None:
        flags = os.O_RDWR | os.O_CREAT if create else os.O_RDONLY | os.O_NONBLOCK
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            if create:
                os.ftruncate(descriptor, PAGE_BYTES)
            access = mmap.ACCESS_WRITE if create else mmap.ACCESS_READ
            self._page = mmap.mmap(descriptor, PAGE_BYTES, access=access)
        finally:
            os.close(descriptor)

    def write(self, *, busy: bool, now: float, gap: float, short: bool = False) -> None:
        """Store the phase of the holder, the time of its change, and its latest gap."""
        _PAGE.pack_into(self._page, 0, busy, short, int(now * 1e9), int(gap * 1e9))

    def read(self) -> Tuple[StepPhase, float]:
        """Return the phase of the holder, and the seconds of its latest gap."""
        busy, _, since, gap = _PAGE.unpack_from(self._page)
        return StepPhase(busy=busy != 0, since=since / 1e9), gap / 1e9

    def close(self) -> None:
        """Unmap the page."""
        self._page.close()


# -- lines of reports -----------------------------------------------------------------------------


class GuestReport(NamedTuple):
    """Report of the library of a run.

    Attributes:
        listens: position of its gates, ``module`` or ``step``; empty for a run without gates.
        stands: number of the bound under which it waits at a closed gate; 0 while it works.
        module_seconds: its longest module.
        reserved, spilled, peak: bytes of device memory of the allocator, bytes in host memory
            instead, and highest number of bytes of a step; 0 if unknown.
        device, free: total and free bytes of the device; 0 if unknown.
        worked: seconds that it has worked since its start.
    """

    listens: str = ""
    stands: int = 0
    module_seconds: float = 0.0
    reserved: int = 0
    spilled: int = 0
    peak: int = 0
    device: int = 0
    free: int = 0
    worked: float = 0.0


def report_of(document: Dict[str, Any]) -> Optional[GuestReport]:
    """Return the report of a run in a line, with values in range; None without a report."""
    said = document.get("sharing")
    if not isinstance(said, dict):
        return None
    listens = said.get("listens")
    whole = [_whole(said.get(name)) for name in ("stands", "reserved", "spilled", "peak")]
    return GuestReport(
        listens=listens if listens in ("module", "step") else "",
        stands=whole[0],
        module_seconds=_seconds(said.get("module_seconds"), 3600.0),
        reserved=whole[1],
        spilled=whole[2],
        peak=whole[3],
        device=_whole(said.get("device")),
        free=_whole(said.get("free")),
        worked=_seconds(said.get("worked"), 1e9),
    )


def steps_of(document: Dict[str, Any], after: float, now: float) -> List[Tuple[float, float]]:
    """Return the steps in a line of the holder's first process, as start and end, in order.

    Args:
        document: the line.
        after: end of the latest known step; later steps begin at that time or later.
        now: the node's boot clock; no step can have ended later.
    """
    each = document.get("each")
    if not isinstance(each, list) or document.get("local_rank", 0) != 0:
        return []
    found = []
    for pair in each[:200]:
        if not isinstance(pair, list) or len(pair) != 2:
            continue
        start, end = (_seconds(value, now) for value in pair)
        start = max(start, after)
        if start < end:
            found.append((start, end))
            after = end
    return found


def _whole(value: Any) -> int:
    return value if type(value) is int and 0 <= value <= 1 << 50 else 0


def _seconds(value: Any, most: float) -> float:
    """Return a number from 0 to the limit; 0 for anything else, not-a-number included."""
    if type(value) not in (int, float) or not 0.0 <= value <= most:
        return 0.0
    return float(value)
