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


# A pattern is found inside words, too: those below begin and end where words do, and ask for what
# the drivers and libraries write, so that prose, counts of nothing and settings do not match.
DEFAULT_RULES: Final = (
    LogRuleSpec(
        name="uncorrectable ECC error",
        pattern=r"(?i)^(.*\W)?(uncorrectable ECC error encountered"
        r"|cuda_?error_?ecc_?uncorrectable)(\W.*)?$",
        action=LogAction.EXCLUDE_NODE,
    ),
    LogRuleSpec(
        name="GPU lost",
        pattern=r"(?i)^((.*\W)?GPU has fallen off the bus(\W.*)?"
        r"|(.*[^\w ] *)?GPU is lost([^\w ].*)?"
        r"|.*NVRM: Xid \([^)]*\): (48|63|64|74|79|94|95),.*)$",
        action=LogAction.EXCLUDE_NODE,
    ),
    LogRuleSpec(
        name="CUDA out of memory",
        pattern=r"^(.*\W)?(CUDA out of memory|CUDA error: out of memory"
        r"|Cuda failure (\d+ )?'out of memory'|CUDA_ERROR_OUT_OF_MEMORY"
        r"|torch\.(cuda\.)?OutOfMemoryError: .+|RESOURCE_EXHAUSTED: Out of memory"
        r"|OOM when allocating tensor)(\W.*)?$",
        action=LogAction.STOP_RETRIES,
    ),
)
