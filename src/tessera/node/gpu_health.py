"""Conditions of GPUs from the facts of their driver and from the messages in the kernel's log."""

from __future__ import annotations

import os
import re
from typing import Iterable, Iterator, List, NamedTuple, Optional, Tuple

from tessera import hardware
from tessera.hardware import Condition
from tessera.node import system
from tessera.node.gpus import Gpu, Health, Reading

KERNEL_LOG = "/dev/kmsg"
XID_SECONDS = 86_400.0
"""Time for which an Xid message counts as a condition."""
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9A-Fa-f:]+(?:\.\d)?)\): (\d+), ?(.*)")
_RECORD_BYTES, _MOST_RECORDS = 8192, 100_000
_SLOWDOWNS = (
    (0x40, hardware.HOT, "hardware thermal slowdown"),
    (0x80, hardware.POWER_BRAKE, "hardware power brake"),
)
_SLOWDOWN_BIT = 0x08


class Xid(NamedTuple):
    """An Xid message; ``at`` is seconds since the boot."""

    at: float
    pci_address: str
    number: int
    text: str


def conditions(reading: Reading, xids: Iterable[Xid]) -> List[Condition]:
    """Return the conditions of all GPUs, without repetitions."""
    found = [
        Condition(code, detail, gpu.uuid, gpu.pci_address)
        for gpu in reading.gpus
        for code, detail in (*_of_health(gpu.health), *_of_mode(gpu))
    ]
    found += [Condition(hardware.LOST, pci_address=address) for address in reading.lost]
    newest = {(hardware.class_of_xid(xid.number), xid.pci_address): xid for xid in xids}
    found += [
        Condition(code, f"Xid {xid.number}: {xid.text}"[:500], pci_address=address)
        for (code, address), xid in newest.items()
    ]
    return list(dict.fromkeys(found))


def _of_health(health: Health) -> Iterator[Tuple[str, str]]:
    if health.fault:
        yield health.fault, ""
    if health.ecc_uncorrectable:
        yield hardware.ECC_UNCORRECTABLE, f"{health.ecc_uncorrectable} since the driver was loaded"
    if health.remap_failed:
        yield hardware.REMAP_FAILED, ""
    if health.remap_pending:
        yield hardware.REMAP_PENDING, ""
    if health.pages_pending:
        yield hardware.PAGES_PENDING, ""
    reasons = health.throttle_reasons or 0
    causes = [(code, text) for bit, code, text in _SLOWDOWNS if reasons & bit]
    yield from causes
    if reasons & _SLOWDOWN_BIT and not causes:
        yield hardware.SLOWDOWN, ""
    if health.nvlink_errors:
        yield hardware.NVLINK_ERRORS, _magnitude(health.nvlink_errors)
    if health.fabric and health.fabric != "completed":
        yield hardware.FABRIC, health.fabric
    if health.alarm:
        is_warning = health.alarm == "Warning"
        yield (hardware.DEVICE_WARNING if is_warning else hardware.DEVICE_ALARM), health.alarm


def _of_mode(gpu: Gpu) -> Iterator[Tuple[str, str]]:
    """Yield a compute mode in which the driver refuses processes of jobs."""
    if gpu.compute_mode not in ("", "Default"):
        yield hardware.COMPUTE_MODE, gpu.compute_mode


def _magnitude(errors: int) -> str:
    """Return a power of ten, since each change of an inventory requests a round."""
    return f"at least {10 ** (len(str(errors)) - 1)}"


def kernel_xids(path: str = KERNEL_LOG, now: Optional[float] = None) -> List[Xid]:
    """Read the Xid messages of the last day, oldest first; empty if the log is not readable."""
    since = (system.boot_clock() if now is None else now) - XID_SECONDS
    return [xid for xid in map(_xid, _records(path)) if xid is not None and xid.at >= since]


def _records(path: str) -> Iterator[str]:
    """Yield the records of the kernel's log; each read returns one."""
    try:
        log = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        for _ in range(_MOST_RECORDS):
            try:
                record = os.read(log, _RECORD_BYTES)
            except BrokenPipeError:
                continue  # the kernel overwrote the record; continue with the next one
            except OSError:
                return
            if not record:
                return
            yield from record.decode("utf-8", "replace").splitlines()
    finally:
        os.close(log)


def _xid(record: str) -> Optional[Xid]:
    head, _, message = record.partition(";")
    found = _XID.search(message)
    parts = head.split(",")
    if found is None or len(parts) < 3 or not parts[2].isdigit():
        return None
    address, number, text = found.groups()
    if "." not in address:
        address += ".0"
    domain, _, rest = address.lower().partition(":")
    return Xid(int(parts[2]) / 1e6, f"{domain[-4:]}:{rest}", int(number), text.strip())
