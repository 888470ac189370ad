"""Results of importers for the documents in ``tests/fixtures/importers``.

``python -m tests.support.imports`` rewrites the expected results; review the difference.
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scheduling.compat.context import Context, Rule
from scheduling.compat.documents import parse_document
from scheduling.compat.formats import TITLES, format_of_document, format_of_text, import_text
from scheduling.compat.hived.configuration import import_hived
from scheduling.compat.result import Imported, ImportRefusedError
from tessera.messages import Sentence

FIXTURES = Path(__file__).parents[1] / "fixtures" / "importers"
HIVED = "hived"
FORMATS = (*TITLES, HIVED)
CONTEXT = Context(
    rules={
        ("partition", "gpu"): Rule(virtual_cluster="vision-a"),
        ("account", "vision"): Rule(tenant="vision"),
        ("account", "language"): Rule(virtual_cluster="language-a"),
        ("qos", "high"): Rule(priority="prod"),
        ("qos", "scavenger"): Rule(opportunistic=True),
        ("infra", "ssh/lab"): Rule(virtual_cluster="vision-a"),
    },
    clusters={"language-a": "language", "vision-a": "vision"},
    device_types=("A100", "H100", "V100"),
    now=datetime(2030, 1, 1, 12, tzinfo=UTC),
)


def inputs() -> list[tuple[str, Path]]:
    """Return all documents with their formats: job formats, and the format of clusters."""
    return [
        (name, path)
        for name in FORMATS
        for path in sorted((FIXTURES / name).iterdir())
        if path.suffix in (".sh", ".yaml")
    ]


def imported(name: str, text: str, content_type: str = "") -> Imported:
    """Return the result of the importer of a format."""
    if name == HIVED:
        return import_hived(text, content_type)
    return import_text(name, text, CONTEXT, content_type)


def remarks(name: str, text: str) -> Iterator[str]:
    """Return the texts of an importer's remarks and faults for a document."""
    try:
        found = imported(name, text)
    except ImportRefusedError as refused:
        faults = [words for error in refused.errors for words in (error.message, error.remedy)]
        yield from (words for words in faults if isinstance(words, Sentence))
        return
    yield from (remark.message for remark in found.warnings)
    yield from (entry.message for entry in found.unsupported)


def outcome(name: str, text: str, content_type: str = "") -> dict[str, Any]:
    """Return the result in its stored form; the faults of a refused document."""
    try:
        found = imported(name, text, content_type)
    except ImportRefusedError as refused:
        return {"errors": [error.to_json() for error in refused.errors]}
    return {
        "spec": found.spec,
        "more": list(found.more),
        "nodes": list(found.nodes),
        "warnings": [remark.sentence for remark in found.warnings],
        "unsupported": [entry.to_json() for entry in found.unsupported],
    }


def expected_path(path: Path) -> Path:
    """Return the path of the expected result of a document."""
    return path.with_suffix(".json")


def format_of(text: str) -> str:
    """Return the format of a text; empty for a native document.

    Raises:
        ImportRefusedError: the text is neither a batch script nor a document.
    """
    return format_of_text(text) or format_of_document(parse_document(text))


def main() -> None:
    """Write all expected results."""
    for name, path in inputs():
        text = json.dumps(outcome(name, path.read_text()), indent=2, ensure_ascii=False)
        expected_path(path).write_text(f"{text}\n")


if __name__ == "__main__":
    main()
