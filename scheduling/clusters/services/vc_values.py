"""Validation of the values of a virtual cluster."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from django.db.models import CharField, PositiveIntegerField

from scheduling.clusters.models import VC_COLUMNS, VcValues, VirtualCluster
from scheduling.clusters.services.cluster_rules import level_faults
from scheduling.clusters.services.shares import policy_faults
from scheduling.common.edits import count_errors, text_errors
from scheduling.core.messages import sentence
from scheduling.core.sharing.hosts import MOST_GUESTS, Consent
from tenants.errors import FieldError

NAME_PATTERN: Final = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
MAX_SHADOW_POLICIES: Final = 4  # per virtual cluster
CAPS: Final = ("max_devices_per_user", "max_opportunistic_devices")


def name_faults(name: object) -> list[FieldError]:
    """Return the faults in the name of a virtual cluster."""
    if isinstance(name, str) and re.fullmatch(NAME_PATTERN, name):
        return []
    return [
        FieldError(
            field="name",
            value=name,
            message=sentence("not-cluster-name"),
            remedy=sentence("use-cluster-name"),
        )
    ]


def value_faults(values: VcValues, names: Collection[str] = VC_COLUMNS) -> list[FieldError]:
    """Return the faults of the columns ``names`` of ``values``.

    A column without a specific rule is checked by its type in the model: a number counts devices,
    and a text has a maximum length.
    """
    faults: list[FieldError] = []
    for name in VC_COLUMNS:
        if name not in names or name in ("policy", "policy_args"):
            continue
        value, column = getattr(values, name), VirtualCluster._meta.get_field(name)
        if name in _RULES:
            faults += _RULES[name](value)
        elif isinstance(column, PositiveIntegerField):
            faults += count_errors(value, field=name)
        elif isinstance(column, CharField) and column.max_length:
            faults += text_errors(value, field=name, longest=column.max_length)
        else:
            raise NotImplementedError(f"no rule checks the column {name}")
    if "policy" in names or "policy_args" in names:
        faults += policy_faults(values.policy, values.policy_args)
    return faults


def shadow_faults(shadows: object) -> list[FieldError]:
    """Return the faults in a list of shadow policies, each with its parameters."""
    given: list[Any] = list(shadows) if isinstance(shadows, list | tuple) else [shadows]
    if len(given) > MAX_SHADOW_POLICIES or not all(
        isinstance(shadow, Mapping) for shadow in given
    ):
        return [
            FieldError(
                field="shadows",
                value=shadows,
                message=sentence("not-shadow-policies"),
                remedy=sentence("give-shadows", most=MAX_SHADOW_POLICIES),
            )
        ]
    return [
        replace(fault, field=f"shadows[{position}].{fault.field}")
        for position, shadow in enumerate(given)
        for fault in (
            *policy_faults(shadow.get("policy"), shadow.get("policy_args", {})),
            *_until_faults(shadow.get("until")),
        )
    ]


def _until_faults(until: object) -> list[FieldError]:
    """Return the faults in the end of a shadow policy."""
    if until is None or until == "":
        return []
    try:
        if isinstance(until, str) and datetime.fromisoformat(until[:40]).tzinfo is not None:
            return []
    except ValueError:
        pass
    return [
        FieldError(
            field="until",
            value=until,
            message=sentence("not-end-of-shadow"),
            remedy=sentence("give-end-of-shadow"),
        )
    ]


def consent_faults(consent: object) -> list[FieldError]:
    """Return the faults in the default consent to guests."""
    names = [known.value for known in Consent]
    if consent in names:
        return []
    return [
        FieldError(
            field="guests_default",
            value=consent,
            message=sentence("not-consent"),
            remedy=sentence("choices", names=", ".join(names)),
        )
    ]


def guest_count_faults(count: object) -> list[FieldError]:
    """Return the faults in the maximum number of guests on one device."""
    if isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= MOST_GUESTS:
        return []
    return [
        FieldError(
            field="max_guests",
            value=count,
            message=sentence("out-of-range", lowest=0, highest=MOST_GUESTS),
            remedy=sentence("write-integer", lowest=0, highest=MOST_GUESTS),
        )
    ]


_RULES: Final[Mapping[str, Callable[[Any], list[FieldError]]]] = {
    "guests_default": consent_faults,
    "least_isolation": level_faults,
    "max_guests": guest_count_faults,
    "shadows": shadow_faults,
}
