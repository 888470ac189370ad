"""The table of architecture decisions agrees with the records."""

import re
from pathlib import Path

ADRS = Path(__file__).resolve().parents[2] / "docs" / "adr"


def row(record: Path) -> str:
    """The row of a record in the table: number, linked title, status line or "accepted"."""
    text = record.read_text()
    title = re.match(r"# (\d+)\. (.+)\n", text)
    assert title, record.name
    assert int(title[1]) == int(record.name[:4]), record.name
    status = re.search(r"^Status: (.+)\.$", text, flags=re.MULTILINE)
    return f"| {title[1]} | [{title[2]}]({record.name}) | {status[1] if status else 'accepted'} |"


def test_the_table_lists_every_record_with_title_and_status() -> None:
    table = [
        line for line in (ADRS / "README.md").read_text().splitlines() if re.match(r"\| \d", line)
    ]

    assert table == [row(record) for record in sorted(ADRS.glob("0*.md"))]


def test_no_number_is_used_twice() -> None:
    numbers = [record.name[:4] for record in ADRS.glob("0*.md")]

    assert len(numbers) == len(set(numbers))
