"""Facts of a node's GPUs, and the port through which the readers of a driver report them."""

from __future__ import annotations

from typing import Iterable, List, NamedTuple, Optional, Sequence, Tuple

LOST, RESET_REQUIRED = "lost", "reset-required"
NEAR = ("X", "PIX", "PXB")
"""Terms of a topology matrix for two GPUs with at most PCIe switches between them."""
SAME_SOCKET = (*NEAR, "PHB", "NODE")
COMPUTE_MODES = ("Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process")


class Health(NamedTuple):
    """Health facts of a GPU; None if the driver or the board does not report one.

    Attributes:
        fault: ``LOST`` or ``RESET_REQUIRED`` if the driver reports it, or empty.
        ecc_uncorrectable: uncorrectable memory errors since the driver was loaded.
        remap_pending: rows of memory are remapped at the next reset.
        remap_failed: a row could not be remapped.
        pages_pending: pages of memory are retired at the next reset.
        throttle_reasons: bits of NVML's clock event reasons.
        nvlink_errors: replay, recovery and CRC errors of all NVLinks.
        fabric: state of the registration with the fabric manager, or empty without a fabric.
        alarm: the state that the driver of an NPU reports if it is not well: ``Warning``,
            ``Alarm`` or ``Critical``.
    """

    fault: str = ""
    ecc_uncorrectable: Optional[int] = None
    remap_pending: Optional[bool] = None
    remap_failed: Optional[bool] = None
    pages_pending: Optional[bool] = None
    throttle_reasons: Optional[int] = None
    nvlink_errors: Optional[int] = None
    fabric: str = ""
    alarm: str = ""


class Gpu(NamedTuple):
    """One GPU, or one MIG instance of a GPU, as its driver reports it.

    Attributes:
        position: by the driver, in the order of the PCI addresses; instances come after all GPUs.
        pci_address: as the kernel writes it, ``0000:3b:00.0``.
        utilisation: share of the last interval in which it was busy, 0 to 1.
        temperature: degrees Celsius.
        power: watts.
        display: a screen shows its output.
        instance: GPU instance and compute instance (MIG), such as ``7/0``; empty for a whole GPU.
        file_number: number of its device file, where the tool of the driver reports it.
    """

    position: int
    uuid: str
    name: str
    pci_address: str
    serial: str = ""
    memory_bytes: Optional[int] = None
    memory_used_bytes: Optional[int] = None
    utilisation: Optional[float] = None
    temperature: Optional[float] = None
    power: Optional[float] = None
    compute_mode: str = ""
    instance: str = ""
    display: bool = False
    file_number: Optional[int] = None
    health: Health = Health()


class GpuProcess(NamedTuple):
    """A process that computes on a GPU, or on a MIG instance.

    Attributes:
        uuid: the GPU or instance.
        pid: in the initial PID namespace.
        memory_bytes: its device memory; None if the driver does not report it.
    """

    uuid: str
    pid: int
    memory_bytes: Optional[int] = None


class Reading(NamedTuple):
    """The GPUs of a node at one time.

    Attributes:
        driver: version of the driver; ``cuda`` the highest version of CUDA that it supports.
        lost: PCI addresses of known GPUs that the driver cannot reach.
        warnings: messages of the driver about parts that it could not read.
        processes: processes that compute on the GPUs, in a detailed reading.
    """

    gpus: List[Gpu]
    driver: str = ""
    cuda: str = ""
    lost: List[str] = []  # noqa: RUF012 - a default of a named tuple, which nothing changes
    warnings: List[str] = []  # noqa: RUF012 - likewise
    processes: List[GpuProcess] = []  # noqa: RUF012 - likewise


class Reader:
    """Port to a driver of GPUs or NPUs: a library, or the tool of its vendor."""

    name = ""

    def read(self, *, in_detail: bool) -> Optional[Reading]:
        """Read all GPUs; None if there is no driver, or it does not respond.

        Args:
            in_detail: also read health facts that need further calls.
        """
        raise NotImplementedError

    def nvlink_domains(self, gpus: Sequence[Gpu]) -> Optional[List[int]]:
        """Return the NVLink domain of each GPU, -1 for a GPU without a link; None if unknown.

        GPUs are in one domain if links or NVSwitches connect them. Its number is the place of its
        first GPU. Links of other vendors (XGMI, HCCS) count likewise.
        """
        raise NotImplementedError

    def closeness(self, gpus: Sequence[Gpu]) -> Optional[List[Tuple[int, int]]]:
        """Return the socket and the PCIe group of each GPU; None if unknown."""
        raise NotImplementedError


def kernel_address(bus_id: str) -> str:
    """Convert ``00000000:3B:00.0`` to ``0000:3b:00.0``."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:]}:{rest}" if rest else ""


def domains(size: int, pairs: Iterable[Tuple[int, int]]) -> List[int]:
    """Return the number of the first connected one for each of ``size`` GPUs; -1 if alone."""
    first = _first_of(size, pairs)
    return [number if first.count(number) > 1 else -1 for number in first]


def _first_of(size: int, pairs: Iterable[Tuple[int, int]]) -> List[int]:
    first = list(range(size))
    for one, other in pairs:
        low, high = sorted((first[one], first[other]))
        first = [low if number == high else number for number in first]
    return first


def groups(matrix: Sequence[Sequence[str]], joined: Sequence[str]) -> List[int]:
    """Return for each GPU the number of the first GPU with which it is joined.

    GPUs that a third one joins are joined: an NVLink hides the other paths of its pair.
    """
    return _first_of(
        len(matrix),
        (
            (one, other)
            for one, row in enumerate(matrix)
            for other, word in enumerate(row)
            if word in joined
        ),
    )
