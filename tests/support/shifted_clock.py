"""The wall clock of processes that a test moves while they run: a library for ``LD_PRELOAD``."""

import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).with_suffix(".c")


class ShiftedClock:
    """How far the wall clock of some processes is ahead; their monotonic clocks stay."""

    def __init__(self, folder: Path) -> None:
        self._library = folder / "shifted_clock.so"
        self._shift = folder / "shift"
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-O1", "-o", str(self._library), str(SOURCE), "-ldl"],
            check=True,
        )
        self._shift.write_bytes(struct.pack("d", 0.0))

    @property
    def variables(self) -> dict[str, str]:
        """What the processes are to be started with."""
        return {"LD_PRELOAD": str(self._library), "SHIFTED_CLOCK": str(self._shift)}

    def set(self, hours: float) -> None:
        """Let the clock jump in all of them."""
        handle = os.open(self._shift, os.O_WRONLY)
        try:
            os.pwrite(handle, struct.pack("d", hours * 3600.0), 0)
        finally:
            os.close(handle)


def can_shift() -> str:
    """Why no clock can be shifted here; empty if one can."""
    return "" if shutil.which("cc") else "no C compiler"
