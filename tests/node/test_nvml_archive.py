"""NVIDIA's own bindings in the node archive read a compiled stand-in of the library."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tessera import hardware
from tessera.bundle import build_bundle

STUB = Path(__file__).parent.parent / "fixtures" / "nvml_stub.c"


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_the_archive_reads_gpus_by_nvml(home: Path) -> None:
    library = home / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(STUB)], check=True)
    (home / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    (home / "nvidia-smi").chmod(0o755)
    archive = home / "node.pyz"
    archive.write_bytes(build_bundle().data)

    done = subprocess.run(
        [sys.executable, "-I", str(archive), "probe"],
        env={
            "HOME": str(home),
            "PATH": f"{home}:{os.environ['PATH']}",
            "LD_LIBRARY_PATH": str(home),
        },
        stdout=subprocess.PIPE,
        check=True,
    )

    found = json.loads(done.stdout)
    assert (found["reader"], found["driver"], found["cuda"]) == ("nvml", "550.54.15", "12.4")
    assert [(d["uuid"], d["pci_address"], d["type"]) for d in found["devices"]] == [
        ("GPU-stub-0", "0000:1b:00.0", "NVIDIA-H100-80GB-HBM3"),
        ("GPU-stub-1", "0000:1c:00.0", "NVIDIA-H100-80GB-HBM3"),
    ]
    assert found["devices"][0]["memory_bytes"] == 80 << 30
    assert {(one["uuid"], one["code"]) for one in found["conditions"]} == {
        ("GPU-stub-0", hardware.ECC_UNCORRECTABLE),
        ("GPU-stub-1", hardware.RESET_REQUIRED),
    }
