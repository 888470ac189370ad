"""Warnings about a run, by code: protections that its node lacks; shown at submit too."""

from collections.abc import Mapping
from typing import Final

from tessera.isolation import NETWORK_ISOLATED, NETWORK_SHARED, NOT_ISOLATED

LIMITS_NOT_ENFORCED: Final = "limits-not-enforced"

RUN_WARNINGS: Final[Mapping[str, str]] = {
    NOT_ISOLATED: "Not isolated from other jobs on its node",
    LIMITS_NOT_ENFORCED: "CPU and memory limits are not enforced",
    NETWORK_SHARED: "Network shared with its node",
    NETWORK_ISOLATED: "No network connection to the outside",
}
"""Texts by code; other codes are shown unchanged."""
