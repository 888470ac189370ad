"""Load of a node and its devices.

The load of a GPU comes from the driver. The load of a declared device is the processor time of its
runs, as a share of its processors.
"""

from __future__ import annotations

import os
import time
from typing import Any, Dict, List

from tessera import protocol
from tessera.node import driver, probe, system
from tessera.node.runs import Run, Store
from tessera.node.sharing.requests import company_of
from tessera.node.system import Process
from tessera.protocol import Json, ProtocolError, RunStatus


def sample(root: str) -> Json:
    """Take one sample of the node; ``Telemetry`` completes the load of declared devices."""
    memory = probe.memory_figures()
    disk = os.statvfs(root)
    declaration = system.read_json(os.path.join(root, protocol.DEVICES_FILE), any_owner=True)
    devices = _gpus(root) if declaration is None else _declared(declaration)
    for device in devices:
        company = company_of(root, device["index"], device.get("uuid") or "")
        if company is not None:
            device["company"] = company
    return {
        "at": time.time(),
        "clock": system.boot_clock(),
        "load": os.getloadavg()[0],
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": memory.get("MemTotal", 0),
        "memory_used_bytes": memory.get("MemTotal", 0) - memory.get("MemAvailable", 0),
        "disk_free_bytes": disk.f_bavail * disk.f_frsize,
        "disk_total_bytes": disk.f_blocks * disk.f_frsize,
        "devices": devices,
        "runs": _usages(root),
    }


def _gpus(root: str) -> List[Json]:
    """Return the load of the GPUs; empty while the driver hangs or another read is in progress."""
    try:
        answer = driver.read(root, in_detail=False) if driver.has_driver() else None
    except (driver.DriverHungError, driver.DriverBusyError):
        return []
    return [
        {
            "index": gpu.position,
            "uuid": gpu.uuid,
            "utilisation": gpu.utilisation,
            "memory_used_bytes": gpu.memory_used_bytes,
            "memory_bytes": gpu.memory_bytes,
            "temperature": gpu.temperature,
            "power": gpu.power,
        }
        for gpu in (answer.reading.gpus if answer else [])
    ]


def _declared(declaration: Json) -> List[Json]:
    try:
        found = probe.read_declaration(declaration)
    except ProtocolError:
        return []
    count = max(1, len(found.devices))
    return [
        {
            "index": device.index,
            "utilisation": None,
            "memory_used_bytes": 0,
            "memory_bytes": device.memory_bytes or found.memory_bytes // count or None,
            "temperature": None,
            "power": None,
            "cpus": (found.cpus or len(os.sched_getaffinity(0))) / count,
        }
        for device in found.devices
    ]


def _is_running(run: Run) -> bool:
    try:
        return run.recorded().phase == protocol.RUNNING
    except ProtocolError:
        return False


def _usages(root: str) -> List[Json]:
    running = [run for run in Store(root).all_runs() if _is_running(run)]
    table = list(system.processes()) if running else []
    return [_usage(run, table) for run in running]


def _usage(run: Run, table: List[Process]) -> Json:
    found = _processes_of(run.recorded(), table)
    try:
        devices = run.spec().devices
    except ProtocolError:
        devices = []
    return {
        "run_id": run.run_id,
        "devices": devices,
        "cpu_seconds": sum(one.ticks for one in found) / system.CLOCK_TICKS,
        "memory_bytes": sum(one.rss for one in found),
    }


def _processes_of(status: RunStatus, table: List[Process]) -> List[Process]:
    """Return the runner's processes, and those of its container, which run below the engine."""
    mine = [one for one in table if (one.pid, one.start) == (status.pid, status.pid_start)]
    roots = {pid for pid in (status.runner_pid, *(one.pid for one in mine)) if pid}
    found = {one.pid: one for one in (*mine, *system.descendants(roots, table))}
    return list(found.values())


class Telemetry:
    """Turns the processor time of two samples into load."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._before: Dict[str, float] = {}
        self._clock = 0.0

    def complete(self, outcome: Json) -> None:
        """Fill in the load of declared devices, and format the reply."""
        if not outcome.get("ok"):
            return
        found = {name: outcome.pop(name) for name in list(outcome) if name != "ok"}
        elapsed = found.pop("clock") - self._clock
        used = {run["run_id"]: run["cpu_seconds"] for run in found["runs"]}
        _spread_memory(found["devices"], found["runs"])
        if self._clock and elapsed > 0:
            _spread(found["devices"], found["runs"], self._before, elapsed)
        self._clock += elapsed
        self._before = used
        for device in found["devices"]:
            device.pop("cpus", None)
        outcome["telemetry"] = found


def _held(devices: List[Json], run: Json) -> List[Dict[str, Any]]:
    """Return the declared devices that a run holds."""
    by_index = {device["index"]: device for device in devices if "cpus" in device}
    return [by_index[index] for index in run["devices"] if index in by_index]


def _spread_memory(devices: List[Json], runs: List[Json]) -> None:
    for run in runs:
        held = _held(devices, run)
        for device in held:
            device["memory_used_bytes"] += run["memory_bytes"] // len(held)


def _spread(
    devices: List[Json], runs: List[Json], before: Dict[str, float], elapsed: float
) -> None:
    for device in devices:
        if "cpus" in device:
            device["utilisation"] = 0.0
    for run in runs:
        held = _held(devices, run)
        spent = max(0.0, run["cpu_seconds"] - before.get(run["run_id"], 0.0))
        for device in held:
            share = spent / elapsed / device["cpus"] / len(held)
            device["utilisation"] = min(1.0, device["utilisation"] + share)
