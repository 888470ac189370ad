"""Requests of the control plane on device sharing: orders to a coordinator, starts of guests."""

from __future__ import annotations

import os
import time
from typing import Any, Dict, List, Optional, Tuple

from tessera import protocol
from tessera.device_sharing import DeviceOrder
from tessera.node import system
from tessera.node.runs import Run
from tessera.node.sharing import files
from tessera.protocol import ProtocolError, RunSpec
from tessera.wire import Fields

MOST_DEVICES = 4096
HOLDER_SECONDS = 0.25
"""Time that a guest's start waits for a coordinator that has orders and no lock yet."""
FRESH_SECONDS = 3.0


def device_dirs(root: str, spec: RunSpec) -> Dict[int, str]:
    """Return the directories of a run's devices by number."""
    uuids = spec.gpus or [""] * len(spec.devices)
    return {
        number: files.device_dir(root, number, uuid)
        for number, uuid in zip(spec.devices, uuids)  # noqa: B905 - strict came with Python 3.10
    }


def order_guests(run: Run, take: Fields) -> None:
    """Store orders for the coordinator of a running holder; older ones change nothing.

    A device of the run that is not named has no guests.

    Raises:
        ProtocolError: the request is malformed, the run is not running, a device is not one of
            its own, or the orders cannot be written.
    """
    number = take.integer("number", None, 0, 1 << 53)
    named = [DeviceOrder.from_json(item) for item in take.items("devices", MOST_DEVICES)]
    if run.recorded().phase != protocol.RUNNING:
        raise ProtocolError("not-running", f"run {run.run_id} is not running")
    directories = device_dirs(run.store.root, run.spec())
    orders = {device: DeviceOrder(device, 0.05) for device in directories}
    for order in named:
        if order.device not in directories:
            raise take.refuse("devices", f"device {order.device} is not one of the run")
        for guest in order.guests:
            protocol.parse_run_id(guest.run_id)
        orders[order.device] = order
    for device, directory in directories.items():
        _write(directory, files.Orders(number, run.run_id, orders[device]))


def _write(directory: str, orders: files.Orders) -> None:
    known = files.read_orders(directory)
    is_known = known is not None and known.holder_run_id == orders.holder_run_id
    if known is not None and is_known and known.number >= orders.number:
        return
    os.makedirs(directory, mode=0o700, exist_ok=True)
    path = os.path.join(directory, files.ORDERS_FILE)
    if not files.write_document(path, files.orders_document(orders)):
        raise ProtocolError("not-written", "the orders cannot be written", protocol.NODE)


def check_holders(root: str, spec: RunSpec) -> None:
    """Check that the holders of a guest's devices run, and coordinate them.

    Raises:
        ProtocolError: ``holder-gone``: a late request must not start a guest with another holder.
    """
    directories = device_dirs(root, spec)
    deadline = time.monotonic() + HOLDER_SECONDS
    for place in spec.beside:
        directory = directories[place.device]
        while files.coordinator_of(directory) != place.holder_run_id:
            orders = files.read_orders(directory)
            is_ordered = orders is not None and orders.holder_run_id == place.holder_run_id
            if not is_ordered or time.monotonic() > deadline:
                message = f"run {place.holder_run_id} does not coordinate device {place.device}"
                raise ProtocolError("holder-gone", message, protocol.PLATFORM)
            time.sleep(0.005)


def company_of(root: str, number: int, uuid: str) -> Optional[Dict[str, Any]]:
    """Return the state of a device's coordinator; None without a coordinator with guests."""
    path = os.path.join(files.device_dir(root, number, uuid), files.DEVICE_STATE_FILE)
    found = files.read_document(path)
    if found is None or found.pop("version", None) != files.VERSION:
        return None
    at = found.pop("at", None)
    is_fresh = isinstance(at, float) and 0 <= system.boot_clock() - at <= FRESH_SECONDS
    return found if is_fresh else None


def visible_pages(root: str, spec: RunSpec) -> List[Tuple[str, str]]:
    """Return the phase page that a guest may see: path on the node, and path in its sandbox.

    The holder can replace its page by a link: only a file with one name is shown.
    """
    for place in spec.beside:
        if not place.sees_phase:
            continue
        top = os.path.join(os.path.realpath(root), protocol.RUNS_DIR, place.holder_run_id)
        path = os.path.join(top, protocol.PHASE_FILE)
        try:
            descriptor = system.open_regular(path, any_owner=True)
        except OSError:
            continue
        has_one_name = os.fstat(descriptor).st_nlink == 1
        os.close(descriptor)
        if has_one_name:
            return [(path, files.PHASE_IN_SANDBOX)]
    return []
