"""Small file systems that a test fills to the last byte."""

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest


@contextmanager
def small_disk(folder: Path, megabytes: int = 96) -> Iterator[None]:
    """Mount a small file system on a folder; only root may do so."""
    folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    options = f"size={megabytes}m,mode=0700"
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if os.getuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """Leave no byte free in a folder, even if other programs remove files meanwhile."""
    ballast, ended = folder / "ballast", threading.Event()

    def fill() -> None:
        with ballast.open("ab", buffering=0) as file:
            while not ended.wait(0.01):
                for size in (1 << 20, 1 << 12, 1):
                    _write_all_that_fits(file, size)

    filling = threading.Thread(target=fill)
    filling.start()
    try:
        yield
    finally:
        ended.set()
        filling.join()
        ballast.unlink()


def _write_all_that_fits(file: BinaryIO, size: int) -> None:
    try:
        while True:
            file.write(b"x" * size)
    except OSError:
        return
