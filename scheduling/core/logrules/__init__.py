"""Rules about lines of logs: patterns that are matched in linear time, and what follows."""

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
