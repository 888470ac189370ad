"""Entries of the changelog are single lines."""

from pathlib import Path

CHANGELOG = Path(__file__).resolve().parents[2] / "CHANGELOG.md"
LONGEST = 120


def test_no_line_is_too_long() -> None:
    lines = CHANGELOG.read_text().splitlines()

    assert [line for line in lines if len(line) > LONGEST] == []


def test_an_entry_is_one_line() -> None:
    _, entries = CHANGELOG.read_text().split("## [Unreleased]")

    assert [
        line for line in entries.splitlines() if line and not line.startswith(("- ", "#"))
    ] == []
