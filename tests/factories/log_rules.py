"""The rules about logs that every installation begins with."""

from scheduling.core.watching.log_rules import DEFAULT_RULES
from scheduling.watching.models import LogRule


def make_log_rules_to_begin_with() -> None:
    """Have them, even behind a test that emptied all tables, also of what migrations wrote."""
    for rule in DEFAULT_RULES:
        LogRule.objects.get_or_create(
            name=rule.name, defaults={"pattern": rule.pattern, "action": rule.action}
        )
