"""What a rule is, and those that every installation begins with."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

LONGEST_NAME: Final = 60


class LogAction(StrEnum):
    """What follows when a line matches."""

    EXCLUDE_NODE = "exclude-node"
    STOP_RETRIES = "stop-retries"
    LABEL = "label"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRuleSpec:
    """A pattern and what follows when a line of a job's log matches it.

    Attributes:
        name: what events and labels call it.
        pattern: see ``patterns.Pattern``.
        action: the node is avoided by the next attempt; or there is no next attempt; or the job
            gets a label.
    """

    name: str
    pattern: str
    action: LogAction


DEFAULT_RULES: Final = (
    LogRuleSpec(
        name="uncorrectable ECC error",
        pattern=r"(?i)uncorrectable ECC error",
        action=LogAction.EXCLUDE_NODE,
    ),
    LogRuleSpec(
        name="GPU lost",
        pattern=r"(?i)GPU has fallen off the bus|GPU is lost|"
        r"NVRM: Xid .*: (48|63|64|74|79|94|95),",
        action=LogAction.EXCLUDE_NODE,
    ),
    LogRuleSpec(
        name="CUDA out of memory",
        pattern=r"CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY|torch\.OutOfMemoryError",
        action=LogAction.STOP_RETRIES,
    ),
)
