"""What a step frees stays in the process for the next step."""

import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "src"
PAGES = 2048
PROGRAM = f"""
import resource
from tessera.train.memory import keep_freed_memory
print(keep_freed_memory())
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        bytearray({PAGES} * 4096)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


def kept_and_faults(**environment: str) -> tuple[bool, int]:
    """Whether memory is kept, and how many pages ten allocations of many pages get anew."""
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True,
        env={"PYTHONPATH": str(SOURCES), **environment},
    )  # fmt: skip
    kept, faults = found.stdout.split()
    return kept == "True", int(faults)


def test_memory_that_is_freed_is_not_fetched_again() -> None:
    kept, faults = kept_and_faults()

    if not kept:
        pytest.skip("the C library is not glibc")
    assert faults < PAGES


def test_what_the_environment_chooses_is_left_alone() -> None:
    kept, faults = kept_and_faults(MALLOC_TRIM_THRESHOLD_="131072")

    assert not kept
    assert faults > PAGES
