"""Faults of a translated OpenPAI job by the fields of the original."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from portal.api.importers.result import ImportRefusedError
from scheduling.core.jobspec import FieldError, InvalidJobSpecError, parse

_PATHS: Final = (
    (r"^virtual_cluster\b", "defaults.virtualCluster"),
    (r"^note\b", "description"),
    (r"^retries\.user\b", "jobRetryCount"),
    (r"^priority\b", "extras.hivedScheduler.jobPriorityClass"),
    (r"\.command$", ".commands"),
    (r"\.image$", ".dockerImage"),
    (r"\.device_types\b", ".skuType"),
    (r"^(taskRoles\..+)\.pinned_cell$", r"extras.hivedScheduler.\1.pinnedCellId"),
    (r"\.(cpus|memory|ports|devices)\b", r".resourcePerInstance.\1"),
    (r"\.resourcePerInstance\.cpus$", ".resourcePerInstance.cpu"),
    (r"\.resourcePerInstance\.memory$", ".resourcePerInstance.memoryMB"),
    (r"\.resourcePerInstance\.devices$", ".resourcePerInstance.gpu"),
    (r"\.completion\.min_failed$", ".completion.minFailedInstances"),
    (r"\.completion\.min_succeeded$", ".completion.minSucceededInstances"),
)


def check_openpai(spec: dict[str, Any], names: Mapping[str, str]) -> None:
    """Check the translation and name what is wrong by the fields of the original.

    Raises:
        ImportRefusedError: the native spec would be refused.
    """
    try:
        parse(spec)
    except InvalidJobSpecError as refused:
        raise ImportRefusedError([_renamed(error, names) for error in refused.errors]) from None


def _renamed(error: FieldError, names: Mapping[str, str]) -> FieldError:
    path = error.field
    for new, old in names.items():
        prefix = f"roles.{new}"
        if path == prefix or path.startswith(f"{prefix}."):
            path = f"taskRoles.{old}{path.removeprefix(prefix)}"
            path = re.sub(r"^taskRoles\..*\.secrets\b", "secrets", path)
            break
    for pattern, wanted in _PATHS:
        path = re.sub(pattern, wanted, path)
    return replace(error, field=path)
