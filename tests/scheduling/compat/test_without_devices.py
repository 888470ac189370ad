"""Imported jobs without GPUs: no device if the cluster has CPUs that belong to none, else one."""

from typing import Any

import pytest

from scheduling.compat.context import Context
from scheduling.compat.formats import import_text
from scheduling.core.jobspec import demand, parse

OPENPAI = """
protocolVersion: 2
name: load
type: job
prerequisites:
  - {name: image, type: dockerimage, uri: "registry.example.org/load:1"}
taskRoles:
  loader:
    instances: 2
    dockerImage: image
    resourcePerInstance: {cpu: 4, memoryMB: 8192, gpu: 0}
    commands: [load]
defaults: {virtualCluster: vision-a}
"""
SBATCH = "#!/bin/sh\n#SBATCH --partition=vision-a\n#SBATCH --cpus-per-task=4 --mem=8G\nload\n"
DSTACK = """
type: task
name: load
fleets: [vision-a]
commands: [load]
resources: {cpu: 4, memory: 8GB, gpu: 0}
"""
SKYPILOT = "name: load\nresources: {cpus: 4, memory: 8}\nrun: load\n"
FORMATS = {"openpai": OPENPAI, "sbatch": SBATCH, "dstack": DSTACK, "skypilot": SKYPILOT}


def translated(name: str, text: str, *, pools: bool) -> tuple[dict[str, Any], tuple[str, ...]]:
    context = Context(clusters={"vision-a": "1"}, virtual_cluster="vision-a", has_cpu_pools=pools)
    imported = import_text(name, text, context)
    return dict(imported.spec), tuple(map(str, imported.warnings))


@pytest.mark.parametrize("name", FORMATS)
def test_a_job_without_gpus_takes_no_device_where_cpus_belong_to_none(name: str) -> None:
    spec, warnings = translated(name, FORMATS[name], pools=True)

    found = demand(parse(spec))
    assert not found.has_devices
    assert found.companions[0].cpus == 4
    assert not any("1 device" in one for one in warnings)


@pytest.mark.parametrize("name", FORMATS)
def test_it_reserves_a_device_and_says_so_where_none_is_left(name: str) -> None:
    spec, warnings = translated(name, FORMATS[name], pools=False)

    assert demand(parse(spec)).has_devices
    assert any("reserves 1 device" in one for one in warnings)


@pytest.mark.parametrize(
    "text",
    [
        SBATCH.replace(" --mem=8G", ""),
        SBATCH.replace("--mem=8G", "--mem=8G --reservation=maintenance"),
        SBATCH.replace("--mem=8G", "--mem=8G --nodes=1-4"),
    ],
)
def test_a_script_that_needs_a_device_keeps_one(text: str) -> None:
    spec, _ = translated("sbatch", text, pools=True)

    assert demand(parse(spec)).has_devices
