"""The OpenAPI document as it was last changed on purpose: nothing public changes by accident."""

from difflib import unified_diff
from itertools import islice
from pathlib import Path

import pytest
from django.core.management import call_command

GOLDEN = Path(__file__).with_name("openapi.yaml")
MOST_LINES = 200


def difference(before: str, after: str) -> str:
    """The first lines that differ, as a unified diff."""
    lines = unified_diff(
        before.splitlines(), after.splitlines(), GOLDEN.name, "now", lineterm="", n=6
    )
    return "\n".join(islice(lines, MOST_LINES))


def test_the_openapi_document_is_the_committed_one(tmp_path: Path) -> None:
    now = tmp_path / GOLDEN.name
    call_command("spectacular", "--file", str(now))

    found = difference(GOLDEN.read_text(), now.read_text())
    if found:
        pytest.fail(
            f"The public API has changed:\n{found}\n\n"
            "If this is on purpose, update the committed document, and list the change in "
            "CHANGELOG.md:\n"
            f"    python manage.py spectacular --file tests/portal/api/{GOLDEN.name}",
            pytrace=False,
        )


def test_a_changed_line_is_shown_with_the_lines_around_it() -> None:
    found = difference("name:\n  type: string\n", "name:\n  type: integer\n")

    assert "-  type: string" in found
    assert "+  type: integer" in found
    assert " name:" in found
    assert difference("name:\n", "name:\n") == ""
