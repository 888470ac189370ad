"""Each line of ``docs/promises.md`` names a test that exists."""

import re
from pathlib import Path

from scheduling.core.promises.figures import Cause

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`([\w/]+\.py)::(test_\w+)`")


def test_each_promise_exception_and_violation_names_a_test() -> None:
    tables = TEXT[: TEXT.index("## Audit")]
    rows = [
        line
        for line in tables.splitlines()
        if line.startswith("| ") and not line.endswith("| test |")
    ]

    assert len(rows) > 15
    for row in rows:
        (named,) = NAMED.findall(row)
        source = (ROOT / "tests" / "scheduling" / named[0]).read_text(encoding="utf-8")
        assert f"def {named[1]}(" in source, named


def test_each_cause_is_explained() -> None:
    assert [cause for cause in Cause if f"| `{cause.value}`" not in TEXT] == []
