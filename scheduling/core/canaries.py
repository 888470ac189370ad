"""Canary jobs: settings, the job that tests one device, and the meaning of its end."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from scheduling.core.lifecycle import FailureClass
from tessera.hardware import NVIDIA, vendor_of
from tessera.isolation import NONE

SYSTEM_TENANT: Final = "system"
SYSTEM_USER: Final = "tessera-canary"
VIRTUAL_CLUSTER: Final = "canary"
ROLE: Final = "test"
CANARY_EVENT: Final = "canary"
LEAST_SECONDS, MOST_SECONDS = 10, 3600
START_SECONDS: Final = 1800
"""Time for the pull of an image, in addition to the duration of the test."""
MOST_COMMAND: Final = 4096
PASSED_CODE, FAILED_CODE = 0, 1
MOST_TRIALS: Final = 3
"""Number of runs in turn that could not test the device, after which the portal starts no more."""
RETRY_SECONDS: Final = 600.0
_TEST: Final = "python3 -m tessera.train.canary --seconds"
_NUMBERS: Final = ("bytes", "patterns", "seconds")
_LARGEST: Final = float(1 << 60)


@dataclass(frozen=True, slots=True, kw_only=True)
class CanarySettings:
    """Settings of canary jobs.

    Attributes:
        enabled: whether devices return from a condition's quarantine only by a canary job.
        image: image of the job; a plain job if empty.
        command: shell command that runs after the test of memory and counters; any exit code but
            0 means that the device failed.
        seconds: duration of the test of memory.
    """

    enabled: bool = True
    image: str = ""
    command: str = ""
    seconds: int = 120


DEFAULT: Final = CanarySettings()


def settings_of(stored: Mapping[str, Any]) -> CanarySettings:
    """Return the stored settings; those that are not stored have their defaults."""
    return replace(DEFAULT, **stored)


def is_testable(
    *, reader: str, isolation: str, has_engine: bool, settings: CanarySettings
) -> bool:
    """Return whether a canary job can test a GPU of a node.

    The test is for NVIDIA's GPUs. A plain job at level ``none`` would take the node for the system
    tenant, so that no other tenant could use it.

    Args:
        reader: the reader of the node's GPUs, empty without GPUs.
        isolation: isolation level of its plain jobs, or empty.
        has_engine: whether it runs containers.
        settings: settings of canary jobs.
    """
    if not settings.enabled or not reader or vendor_of(reader) != NVIDIA:
        return False
    return has_engine if settings.image else isolation not in ("", NONE)


def document(device_type: str, settings: CanarySettings) -> dict[str, Any]:
    """Return the specification of a canary job; a retry could use another device."""
    command = f"{_TEST} {settings.seconds}"
    if settings.command:
        command = f"{command} || exit\n(\n{settings.command}\n) || exit {FAILED_CODE}"
    role: dict[str, Any] = {
        "instances": 1,
        "devices": 1,
        "device_types": [device_type],
        "command": command,
    }
    if settings.image:
        role["image"] = settings.image
    return {
        "name": "canary",
        "virtual_cluster": VIRTUAL_CLUSTER,
        "class": "opportunistic",
        "roles": {ROLE: role},
        "max_duration": settings.seconds + START_SECONDS,
        "retries": {failure.value: 0 for failure in FailureClass},
        "notify": {"on": []},
    }


def figures_of(reported: Mapping[str, Any]) -> dict[str, Any]:
    """Return the known figures of a report, which a job may have forged, within bounds."""
    found: dict[str, Any] = {
        name: value
        for name in _NUMBERS
        if isinstance(value := reported.get(name), int | float)
        and not isinstance(value, bool)
        and 0 <= value <= _LARGEST
    }
    for name in ("cause", "dcgm"):
        if isinstance(value := reported.get(name), str):
            found[name] = " ".join(value.split())[:300]
    return found
