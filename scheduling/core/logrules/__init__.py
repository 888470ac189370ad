"""Log rules: patterns that are searched for in the logs of jobs, and the action on a match."""

from scheduling.core.logrules.patterns import Pattern, PatternError
from scheduling.core.logrules.rules import DEFAULT_RULES, LogAction, LogRuleSpec
from scheduling.core.logrules.scanning import Hit, LineScanner

__all__ = [
    "DEFAULT_RULES",
    "Hit",
    "LineScanner",
    "LogAction",
    "LogRuleSpec",
    "Pattern",
    "PatternError",
]
