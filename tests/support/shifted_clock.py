"""Shifts the wall clock of running processes, by a library for ``LD_PRELOAD``."""

import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).with_suffix(".c")


class ShiftedClock:
    """The lead of the wall clock of some processes; their monotonic clocks do not change."""

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
        """Return the environment variables for the processes."""
        return {"LD_PRELOAD": str(self._library), "SHIFTED_CLOCK": str(self._shift)}

    def set(self, hours: float) -> None:
        """Set the lead in all processes."""
        handle = os.open(self._shift, os.O_WRONLY)
        try:
            os.pwrite(handle, struct.pack("d", hours * 3600.0), 0)
        finally:
            os.close(handle)


def can_shift() -> str:
    """Return the reason why clocks cannot be shifted here; empty if they can."""
    return "" if shutil.which("cc") else "no C compiler"
