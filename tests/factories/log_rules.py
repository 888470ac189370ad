"""The rules about logs that every installation begins with."""

from importlib import import_module

from scheduling.models import LogRule


def make_log_rules_to_begin_with() -> None:
    """Have them, even behind a test that emptied all tables, also of what migrations wrote."""
    first = import_module("scheduling.migrations.0016_log_rules_to_begin_with")
    for name, pattern, action in first.RULES:
        LogRule.objects.get_or_create(name=name, defaults={"pattern": pattern, "action": action})
