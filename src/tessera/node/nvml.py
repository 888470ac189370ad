"""Reader of GPUs by NVML, the library of NVIDIA's driver, through NVIDIA's own bindings."""

from __future__ import annotations

import ctypes
import importlib
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, TypeVar

from tessera.node.gpus import (
    COMPUTE_MODES,
    LOST,
    NEAR,
    RESET_REQUIRED,
    SAME_SOCKET,
    Gpu,
    GpuProcess,
    Health,
    Reader,
    Reading,
    domains,
    groups,
    kernel_address,
)

BINDINGS = ("tessera.node.pynvml", "pynvml")
"""In the node archive, which must not shadow the one of a job; and as an installed package."""
_UNCORRECTED, _VOLATILE, _CORE_SENSOR = 1, 0, 0
_LINK_ERRORS = (0, 1, 2, 3)
_SWITCH, _SWITCH_TYPE = "switch", 2
_FABRIC_STATES = {1: "not started", 2: "in progress", 3: "completed"}
_WORDS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}

T = TypeVar("T")


def bindings() -> Any:
    """Import NVIDIA's bindings; None if they are missing."""
    for name in BINDINGS:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


class NvmlReader(Reader):
    """Calls functions of NVML.

    A function that the driver or the board does not have leaves its fact unknown.
    """

    name = "nvml"

    def __init__(self, library: Any) -> None:
        """Args: library: the module ``pynvml``."""
        self._nvml = library
        self._handles: Dict[str, Any] = {}
        self._processes: List[GpuProcess] = []

    def read(self, *, in_detail: bool) -> Optional[Reading]:
        """Read all GPUs; None if NVML cannot be loaded or initialised, or has no GPU."""
        nvml = self._nvml
        try:
            nvml.nvmlInit()
            number = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError:
            return None
        gpus: List[Gpu] = []
        warnings: List[str] = []
        instances: List[Gpu] = []
        self._processes = []
        for index in range(number):
            try:
                gpu = self._gpu(index, in_detail=in_detail)
                if not self._is_divided(gpu):
                    gpus.append(gpu)
                    if in_detail and not gpu.health.fault:
                        self._note_processes(gpu.uuid, self._handles[gpu.pci_address])
                    continue
                found = list(self._instances(gpu, in_detail=in_detail))
            except nvml.NVMLError as error:
                warnings.append(f"GPU {index}: {error}")
                continue
            instances += found
            if not found:
                warnings.append(f"GPU {index}: it is in MIG mode and has no instances")
        gpus += [gpu._replace(position=number + place) for place, gpu in enumerate(instances)]
        if not gpus and not warnings:
            return None
        return Reading(
            gpus=gpus,
            driver=_text(self._ask("", nvml.nvmlSystemGetDriverVersion)),
            cuda=self._cuda() if in_detail else "",
            warnings=warnings,
            processes=self._processes,
        )

    def _note_processes(self, uuid: str, handle: Any) -> None:
        # The function without a version raises another error with drivers before version 3.
        for version in ("_v3", "_v2"):
            function = getattr(self._nvml, f"nvmlDeviceGetComputeRunningProcesses{version}")
            running: Optional[List[Any]] = self._ask(None, function, handle)
            if running is not None:
                self._processes += [
                    GpuProcess(uuid, one.pid, one.usedGpuMemory) for one in running
                ]
                return

    def closeness(self, gpus: Sequence[Gpu]) -> Optional[List[Tuple[int, int]]]:
        """Return the groups by the common ancestor of each pair of GPUs."""
        handles = [self._handles.get(gpu.pci_address) for gpu in gpus]
        try:
            matrix = [
                ["X" if one is other else self._word(one, other) for other in handles]
                for one in handles
            ]
        except self._nvml.NVMLError:  # the GPU was lost during the reading
            return None
        if any(not word for row in matrix for word in row):
            return None
        sockets, near = groups(matrix, SAME_SOCKET), groups(matrix, NEAR)
        return list(zip(sockets, near))  # noqa: B905 - strict came with Python 3.10

    def nvlink_domains(self, gpus: Sequence[Gpu]) -> Optional[List[int]]:
        """Return the domains by the devices at the other ends of the active links."""
        places = {gpu.pci_address: place for place, gpu in enumerate(gpus)}
        pairs: List[Tuple[int, int]] = []
        switched: List[int] = []
        try:
            for place, gpu in enumerate(gpus):
                for end in self._link_ends(gpu):
                    if end in places:
                        pairs.append((place, places[end]))
                    elif end == _SWITCH:
                        switched.append(place)
        except self._nvml.NVMLError:  # the GPU was lost during the reading
            return None
        pairs += [(switched[0], other) for other in switched[1:]]
        return domains(len(gpus), pairs)

    def _link_ends(self, gpu: Gpu) -> Iterator[str]:
        """Yield the PCI address at the end of each active link of a GPU, or ``_SWITCH``."""
        nvml, ask, handle = self._nvml, self._ask, self._handles.get(gpu.pci_address)
        if handle is None or gpu.health.fault or gpu.instance:
            return
        for link in range(nvml.NVML_NVLINK_MAX_LINKS):
            if not ask(0, nvml.nvmlDeviceGetNvLinkState, handle, link):
                continue
            if ask(0, nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link) == _SWITCH_TYPE:
                yield _SWITCH
                continue
            remote = ask(None, nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
            if remote is not None:
                yield kernel_address(_text(remote.busId))

    def _word(self, one: Any, other: Any) -> str:
        level = self._ask(-1, self._nvml.nvmlDeviceGetTopologyCommonAncestor, one, other)
        return _WORDS.get(level, "")

    def _ask(self, default: T, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function; the default if this driver or board does not have it.

        Raises:
            NVMLError: the GPU is lost or requires a reset.
        """
        try:
            return function(*arguments)
        except self._nvml.NVMLError as error:
            if error.value in self._faults():
                raise
            return default

    def _faults(self) -> Dict[int, str]:
        nvml = self._nvml
        return {
            nvml.NVML_ERROR_GPU_IS_LOST: LOST,
            nvml.NVML_ERROR_RESET_REQUIRED: RESET_REQUIRED,
        }

    def _cuda(self) -> str:
        version = self._ask(0, self._nvml.nvmlSystemGetCudaDriverVersion_v2)
        return f"{version // 1000}.{version % 1000 // 10}" if version else ""

    def _gpu(self, index: int, *, in_detail: bool) -> Gpu:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        address = kernel_address(_text(nvml.nvmlDeviceGetPciInfo(handle).busId))
        self._handles[address] = handle
        gpu = Gpu(
            position=index,
            uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
            name=_text(nvml.nvmlDeviceGetName(handle)),
            pci_address=address,
        )
        try:
            return self._with_facts(gpu, handle, in_detail=in_detail)
        except nvml.NVMLError as error:
            # Only its name is known: it was lost, or failed, after the listing.
            return gpu._replace(health=Health(fault=self._faults()[error.value]))

    def _is_divided(self, gpu: Gpu) -> bool:
        """Return whether a GPU is in MIG mode, in which programs use its instances only."""
        if gpu.health.fault:
            return False
        handle = self._handles[gpu.pci_address]
        return self._ask([0, 0], self._nvml.nvmlDeviceGetMigMode, handle)[0] == 1

    def _instances(self, gpu: Gpu, *, in_detail: bool) -> Iterator[Gpu]:
        """Yield the MIG instances of a GPU, with its address, serial number and health."""
        nvml, ask, parent = self._nvml, self._ask, self._handles[gpu.pci_address]
        for place in range(ask(0, nvml.nvmlDeviceGetMaxMigDeviceCount, parent)):
            handle = ask(None, nvml.nvmlDeviceGetMigDeviceHandleByIndex, parent, place)
            if handle is None:
                continue  # the number is the maximum; this instance does not exist
            memory = ask(None, nvml.nvmlDeviceGetMemoryInfo, handle)
            part = nvml.nvmlDeviceGetGpuInstanceId(handle)
            uuid = _text(nvml.nvmlDeviceGetUUID(handle))
            if in_detail:
                self._note_processes(uuid, handle)
            yield gpu._replace(
                uuid=uuid,
                name=self._name_of_instance(gpu, handle),
                memory_bytes=None if memory is None else int(memory.total),
                memory_used_bytes=None if memory is None else int(memory.used),
                utilisation=None,  # the driver reports it for the whole GPU only
                instance=f"{part}/{nvml.nvmlDeviceGetComputeInstanceId(handle)}",
            )

    def _name_of_instance(self, gpu: Gpu, handle: Any) -> str:
        """Return the name with the profile, which older drivers do not include."""
        name = _text(self._ask("", self._nvml.nvmlDeviceGetName, handle))
        if " MIG " in name:
            return name
        size = self._ask(None, self._nvml.nvmlDeviceGetAttributes_v2, handle)
        if size is None:
            return f"{gpu.name} MIG"
        gigabytes = -(-size.memorySizeMB // 1024)
        return f"{gpu.name} MIG {size.gpuInstanceSliceCount}g.{gigabytes}gb"

    def _with_facts(self, gpu: Gpu, handle: Any, *, in_detail: bool) -> Gpu:
        nvml, ask = self._nvml, self._ask
        memory = ask(None, nvml.nvmlDeviceGetMemoryInfo, handle)
        busy = ask(None, nvml.nvmlDeviceGetUtilizationRates, handle)
        power = ask(None, nvml.nvmlDeviceGetPowerUsage, handle)
        mode = ask(-1, nvml.nvmlDeviceGetComputeMode, handle)
        temperature = ask(None, nvml.nvmlDeviceGetTemperature, handle, _CORE_SENSOR)
        serial = _text(ask("", nvml.nvmlDeviceGetSerial, handle))
        return gpu._replace(
            serial=serial if serial != "0" else "",
            memory_bytes=None if memory is None else int(memory.total),
            memory_used_bytes=None if memory is None else int(memory.used),
            utilisation=None if busy is None else min(1.0, busy.gpu / 100),
            temperature=None if temperature is None else float(temperature),
            power=None if power is None else power / 1000,
            compute_mode=COMPUTE_MODES[mode] if 0 <= mode < len(COMPUTE_MODES) else "",
            display=bool(ask(0, nvml.nvmlDeviceGetDisplayActive, handle)),
            health=self._health(handle, in_detail=in_detail),
        )

    def _health(self, handle: Any, *, in_detail: bool) -> Health:
        nvml, ask = self._nvml, self._ask
        errors = ask(None, nvml.nvmlDeviceGetTotalEccErrors, handle, _UNCORRECTED, _VOLATILE)
        pages = ask(None, nvml.nvmlDeviceGetRetiredPagesPendingStatus, handle)
        reasons = ask(None, nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
        health = Health(
            ecc_uncorrectable=errors,
            pages_pending=None if pages is None else bool(pages),
            throttle_reasons=reasons,
        )
        if not in_detail:
            return health
        remaps = ask(None, nvml.nvmlDeviceGetRemappedRows, handle)
        return health._replace(
            remap_pending=None if remaps is None else bool(remaps[2]),
            remap_failed=None if remaps is None else bool(remaps[3]),
            nvlink_errors=self._link_errors(handle),
            fabric=self._fabric(handle),
        )

    def _link_errors(self, handle: Any) -> Optional[int]:
        """Return the errors of all active links; None without a link."""
        nvml, found = self._nvml, None
        for link in range(nvml.NVML_NVLINK_MAX_LINKS):
            if not self._ask(0, nvml.nvmlDeviceGetNvLinkState, handle, link):
                continue
            counted = (
                self._ask(0, nvml.nvmlDeviceGetNvLinkErrorCounter, handle, link, counter)
                for counter in _LINK_ERRORS
            )
            found = (found or 0) + sum(counted)
        return found

    def _fabric(self, handle: Any) -> str:
        nvml = self._nvml
        if not hasattr(nvml, "c_nvmlGpuFabricInfo_t"):
            return ""
        info = nvml.c_nvmlGpuFabricInfo_t()
        if self._ask(None, nvml.nvmlDeviceGetGpuFabricInfo, handle, ctypes.byref(info)) is None:
            return ""
        if info.state == max(_FABRIC_STATES) and info.status:
            return f"failed with status {info.status}"
        return _FABRIC_STATES.get(info.state, "")


def _text(value: Any) -> str:
    """Decode a text; earlier releases of the bindings return bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
