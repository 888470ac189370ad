"""What is wrong with the values that people give a virtual cluster."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from scheduling.services.cluster_rules import level_faults
from scheduling.services.edits import count_errors, text_errors
from scheduling.services.shadows import MOST_SHADOWS
from scheduling.services.shares import policy_faults
from tenants.errors import FieldError

NAME_PATTERN: Final = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
CAPS: Final = ("max_devices_per_user", "max_opportunistic_devices")
LONGEST_NOTE: Final = 500


def name_faults(name: object) -> list[FieldError]:
    """What is wrong with the name of a virtual cluster."""
    if isinstance(name, str) and re.fullmatch(NAME_PATTERN, name):
        return []
    return [
        FieldError(
            field="name",
            value=name,
            message="This cannot be the name of a virtual cluster.",
            remedy="Use 1 to 63 of A-Z a-z 0-9 . _ - between letters or digits.",
        )
    ]


def value_faults(values: Mapping[str, Any]) -> list[FieldError]:
    """What is wrong with caps, note and policy, as far as they are given."""
    faults = [
        fault for cap in CAPS if cap in values for fault in count_errors(values[cap], field=cap)
    ]
    if "least_isolation" in values:
        faults += level_faults(values["least_isolation"])
    if "note" in values:
        faults += text_errors(values["note"], field="note", longest=LONGEST_NOTE)
    if "policy" in values:
        faults += policy_faults(values["policy"], values["policy_args"])
    if "shadows" in values:
        faults += shadow_faults(values["shadows"])
    return faults


def shadow_faults(shadows: object) -> list[FieldError]:
    """What is wrong with a list of shadow policies, each a policy with its parameters."""
    given: list[Any] = list(shadows) if isinstance(shadows, list | tuple) else [shadows]
    if len(given) > MOST_SHADOWS or not all(isinstance(shadow, Mapping) for shadow in given):
        return [
            FieldError(
                field="shadows",
                value=shadows,
                message="This is not a list of shadow policies.",
                remedy=f"Give at most {MOST_SHADOWS} of {{policy, policy_args}}.",
            )
        ]
    return [
        replace(fault, field=f"shadows[{position}].{fault.field}")
        for position, shadow in enumerate(given)
        for fault in policy_faults(shadow.get("policy"), shadow.get("policy_args", {}))
    ]
