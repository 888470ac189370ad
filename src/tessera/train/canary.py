"""Test of the GPUs of a job: counters of NVML, memory by CUDA's driver API, and DCGM.

    python3 -m tessera.train.canary [--seconds 120]

It needs NVIDIA's driver only, neither CUDA's toolkit nor PyTorch. Exit codes: 0 if all GPUs of
the job passed, 1 if one failed, 2 if they could not be tested. The last line of the output is the
cause. The figures are reported as the event ``canary``.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from tessera.node import nvml
from tessera.node.gpus import Gpu, Reader, Reading
from tessera.node.nvml import NvmlReader
from tessera.node.smi import SmiReader
from tessera.train.reports import report_event

PASSED, FAILED, UNTESTED = 0, 1, 2
LIBRARY = "libcuda.so.1"
SECONDS = 120.0
PATTERNS = (0x00000000, 0xFFFFFFFF, 0xAAAAAAAA, 0x55555555)
"""Each bit is read back as 0 and as 1, next to equal and to different bits."""
MOST_CHUNK = 64 << 20
_SPREAD = 0x9E3779B1
"""An odd number: the words of different chunks differ in many bits."""
RESERVE_PARTS = 20
"""One of these parts of the free memory remains free, for the driver."""
DCGM_SECONDS = 300.0
_DCGM_GPU = re.compile(r"^\|\s*(\d+)\s*\|")
_OUT_OF_MEMORY = 2


class GpuFailedError(Exception):
    """A GPU has failed; the message is for admins."""


class NotTestedError(Exception):
    """The GPUs could not be tested; the message is for admins."""


class MemoryFigures(NamedTuple):
    """Extent of a memory test: bytes of the GPU's memory, and patterns on all of them."""

    bytes: int
    patterns: int


class Cuda:
    """The functions of CUDA's driver API that the test needs."""

    def __init__(self, library: str = LIBRARY) -> None:
        """Load the driver's library and initialise it.

        Raises:
            NotTestedError: the library is missing.
            GpuFailedError: the driver cannot be initialised.
        """
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            raise NotTestedError(f"{library} cannot be loaded: {error}") from None
        self._call("cuInit", 0)

    def devices(self) -> int:
        """Return the number of GPUs of the job."""
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        return count.value

    def open(self, place: int) -> ctypes.c_void_p:
        """Create a context on a GPU, and make it current."""
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(device), place)
        self._call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
        return context

    def close(self, context: ctypes.c_void_p) -> None:
        """Destroy a context with all its memory."""
        self._call("cuCtxDestroy_v2", context)

    def free_bytes(self) -> int:
        """Return the free memory of the current GPU."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def allocate(self, size: int) -> Optional[int]:
        """Allocate memory; None if there is not enough."""
        address = ctypes.c_uint64()
        code = self._code("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        if code == _OUT_OF_MEMORY:
            return None
        self._check("cuMemAlloc_v2", code)
        return address.value

    def fill(self, address: int, word: int, size: int) -> None:
        """Write a word of 32 bits to all of an area."""
        self._call(
            "cuMemsetD32_v2",
            ctypes.c_uint64(address),
            ctypes.c_uint(word),
            ctypes.c_size_t(size // 4),
        )

    def copy(self, target: int, source: int, size: int) -> None:
        """Copy within the memory of the GPU."""
        self._call(
            "cuMemcpyDtoD_v2",
            ctypes.c_uint64(target),
            ctypes.c_uint64(source),
            ctypes.c_size_t(size),
        )

    def read(self, target: Any, source: int, size: int) -> None:
        """Copy from the memory of the GPU into a buffer of this process."""
        self._call("cuMemcpyDtoH_v2", target, ctypes.c_uint64(source), ctypes.c_size_t(size))

    def _call(self, name: str, *arguments: Any) -> None:
        self._check(name, self._code(name, *arguments))

    def _code(self, name: str, *arguments: Any) -> int:
        try:
            return int(getattr(self._library, name)(*arguments))
        except AttributeError:
            raise NotTestedError(f"the driver has no function {name}") from None

    def _check(self, name: str, code: int) -> None:
        if code == 0:
            return
        text = ctypes.c_char_p()
        try:
            self._library.cuGetErrorString(code, ctypes.byref(text))
        except AttributeError:
            pass
        words = (text.value or b"").decode("utf-8", "replace")
        raise GpuFailedError(f"{name} fails with code {code}: {words}".rstrip(": "))


# -- memory --------------------------------------------------------------------------------------


def check_memory(
    cuda: Cuda,
    place: int,
    end: float,
    clock: Callable[[], float] = time.monotonic,
    *,
    most_chunk: int = MOST_CHUNK,
) -> MemoryFigures:
    """Write patterns to the free memory of a GPU, copy and read them back.

    Args:
        cuda: the driver.
        place: number of the GPU among those of the job.
        end: time of the clock after which no further pattern begins; the first one is complete.
        clock: monotonic seconds.
        most_chunk: maximum bytes of an allocation.

    Raises:
        GpuFailedError: a word differs, or a call fails.
        NotTestedError: no memory is free.
    """
    context = cuda.open(place)
    try:
        chunks = _allocated(cuda, most_chunk)
        if not chunks:
            raise NotTestedError(f"GPU {place} has no free memory")
        done = 0
        for word in PATTERNS:
            if done and clock() >= end:
                break
            _check_pattern(cuda, chunks, word)
            done += 1
        return MemoryFigures(sum(size for _, size in chunks), done)
    finally:
        cuda.close(context)


def _allocated(cuda: Cuda, most_chunk: int) -> List[Tuple[int, int]]:
    """Allocate nearly all free memory; return addresses and sizes."""
    free = cuda.free_bytes()
    left = free - free // RESERVE_PARTS
    chunks: List[Tuple[int, int]] = []
    size = most_chunk
    while left >= 4 and size >= 4:
        size = min(size, left) // 4 * 4
        address = cuda.allocate(size)
        if address is None:
            size //= 2  # fragmented, or used by the driver itself
            continue
        chunks.append((address, size))
        left -= size
    return chunks


def _check_pattern(cuda: Cuda, chunks: Sequence[Tuple[int, int]], pattern: int) -> None:
    """Fill all chunks, each with an own word, before the first one is read.

    So memory that appears at two addresses is noticed, too. Then each second chunk gets a copy of
    the one before.
    """
    words = [(pattern ^ (number * _SPREAD)) & 0xFFFFFFFF for number in range(len(chunks))]
    for (address, size), word in zip(chunks, words):
        cuda.fill(address, word, size)
    buffer = bytearray(max(size for _, size in chunks))
    for (address, size), word in zip(chunks, words):
        _check_words(cuda, address, size, word, buffer)
    for number in range(1, len(chunks), 2):
        (source, first), (target, second) = chunks[number - 1 : number + 1]
        cuda.copy(target, source, min(first, second))
        _check_words(cuda, target, min(first, second), words[number - 1], buffer)


def _check_words(cuda: Cuda, address: int, size: int, word: int, buffer: bytearray) -> None:
    """Read an area, and compare each word with the one that was written."""
    cuda.read((ctypes.c_char * size).from_buffer(buffer), address, size)
    found, expected = buffer[:size], word.to_bytes(4, sys.byteorder) * (size // 4)
    if found == expected:
        return
    offset = next(i for i in range(0, size, 4) if found[i : i + 4] != expected[i : i + 4])
    value = int.from_bytes(found[offset : offset + 4], sys.byteorder)
    raise GpuFailedError(
        f"memory at 0x{address + offset:x}: wrote 0x{word:08x}, read 0x{value:08x}"
    )


# -- counters ------------------------------------------------------------------------------------


def own_gpus(reading: Optional[Reading], names: Sequence[str]) -> List[Gpu]:
    """Return the GPUs of the job; all that are visible if it does not name them.

    Raises:
        NotTestedError: the driver does not respond.
        GpuFailedError: the driver does not find one of them.
    """
    if reading is None:
        raise NotTestedError("neither NVML nor nvidia-smi finds a GPU")
    by_name = {name: gpu for gpu in reading.gpus for name in (gpu.uuid, str(gpu.position))}
    missing = [name for name in names if name not in by_name]
    if missing:
        raise GpuFailedError(f"the driver does not find GPU {', '.join(missing)}")
    return [by_name[name] for name in names] if names else list(reading.gpus)


def check_counters(before: Sequence[Gpu], after: Sequence[Gpu]) -> None:
    """Check faults of GPUs, and that no memory error was counted during the test.

    Raises:
        GpuFailedError: a GPU has a fault.
    """
    known = {gpu.uuid or str(gpu.position): gpu.health for gpu in before}
    for gpu in after:
        name, health = gpu.uuid or str(gpu.position), gpu.health
        if health.fault:
            raise GpuFailedError(f"GPU {name}: {health.fault}")
        if health.remap_failed:
            raise GpuFailedError(f"GPU {name}: a row of memory could not be remapped")
        counted = known[name].ecc_uncorrectable if name in known else None
        if (health.ecc_uncorrectable or 0) > (counted or 0):
            raise GpuFailedError(f"GPU {name}: uncorrectable memory errors during the test")


def _reader() -> Reader:
    library = nvml.bindings()
    if library is not None:
        found: Reader = NvmlReader(library)
        if found.read(in_detail=False) is not None:
            return found
    return SmiReader()


# -- DCGM ----------------------------------------------------------------------------------------


def check_dcgm(gpus: Sequence[Gpu], run: Callable[[Sequence[str]], Tuple[int, str]]) -> str:
    """Run the short diagnostics of DCGM on GPUs; return ``passed``, or why it did not run.

    Args:
        gpus: the GPUs of the job.
        run: runs a command; returns its exit code, 127 if it is not installed, and its output.

    Raises:
        GpuFailedError: the diagnostics failed.
    """
    code, text = run(["dcgmi", "discovery", "-l"])
    if code == 127:
        return "not installed"
    if code != 0:
        return f"not available: {_last_line(text)}"
    numbers = _dcgm_numbers(text)
    wanted = [numbers[gpu.uuid] for gpu in gpus if gpu.uuid in numbers]
    if len(wanted) < len(gpus):
        return "does not list the GPUs"
    code, text = run(["dcgmi", "diag", "-r", "1", "-i", ",".join(wanted)])
    if code != 0 or re.search(r"\|\s*Fail\b", text):
        failed = [line for line in text.splitlines() if re.search(r"\bFail", line)]
        raise GpuFailedError(f"DCGM: {_last_line((failed or [text])[0])}")
    return "passed"


def _dcgm_numbers(text: str) -> Dict[str, str]:
    """Return DCGM's number of each GPU by UUID, which is in a row below that of the number."""
    found: Dict[str, str] = {}
    number = ""
    for line in text.splitlines():
        row = _DCGM_GPU.match(line)
        number = row.group(1) if row else number
        uuid = re.search(r"Device UUID:\s*(\S+)", line)
        if uuid and number:
            found[uuid.group(1)] = number
    return found


def _last_line(text: str) -> str:
    lines = [" ".join(line.strip(" |").split()) for line in text.splitlines()]
    return next((line for line in reversed(lines) if line.strip("+-= ")), "no output")[:200]


def _run(command: Sequence[str]) -> Tuple[int, str]:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=DCGM_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        return 127, ""
    except (OSError, subprocess.SubprocessError) as error:
        return 126, f"{error}"
    return done.returncode, done.stdout.decode("utf-8", "replace")


# -- the program ---------------------------------------------------------------------------------


def check(seconds: float, figures: Dict[str, Any]) -> None:
    """Test all GPUs of the job, and add the figures of each part to ``figures``.

    Raises:
        GpuFailedError: a GPU has failed.
        NotTestedError: the test could not run.
    """
    begin = time.monotonic()
    names = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    reader = _reader()
    before = own_gpus(reader.read(in_detail=True), names)
    check_counters(before, before)
    cuda = Cuda()
    number = cuda.devices()
    if number < len(before):
        raise GpuFailedError(f"CUDA finds {number} of {len(before)} GPUs")
    tested = 0
    for place in range(number):
        end = begin + seconds * (place + 1) / number
        try:
            memory = check_memory(cuda, place, end)
        except GpuFailedError as error:
            raise GpuFailedError(f"GPU {before[place].uuid or place}: {error}") from None
        tested += memory.bytes
        figures["patterns"] = min(memory.patterns, figures.get("patterns", len(PATTERNS)))
    figures["bytes"] = tested
    check_counters(before, own_gpus(reader.read(in_detail=True), names))
    figures["dcgm"] = check_dcgm(before, _run)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Test the GPUs, report the figures, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python3 -m tessera.train.canary")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="duration of the test")
    wanted = parser.parse_args(arguments)
    figures: Dict[str, Any] = {}
    begin = time.monotonic()
    code, cause = PASSED, "passed"
    try:
        check(wanted.seconds, figures)
    except GpuFailedError as error:
        code, cause = FAILED, f"{error}"
    except NotTestedError as error:
        code, cause = UNTESTED, f"{error}"
    figures["seconds"] = round(time.monotonic() - begin, 1)
    report_event("canary", result=("passed", "failed", "untested")[code], cause=cause, **figures)
    print(", ".join(f"{name}: {value}" for name, value in sorted(figures.items())))
    print(f"canary: {cause}")
    return code


if __name__ == "__main__":
    sys.exit(main())
