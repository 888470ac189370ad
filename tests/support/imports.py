"""What importers make of the documents in ``tests/fixtures/importers``.

``python -m tests.support.imports`` writes the expected results anew; read the difference.
"""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from portal.api.importers.context import Context, Rule
from portal.api.importers.formats import TITLES, import_text
from portal.api.importers.hived import import_hived
from portal.api.importers.result import ImportRefusedError

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
    """All documents with their formats: those of jobs, and that of whole clusters."""
    return [
        (name, path)
        for name in FORMATS
        for path in sorted((FIXTURES / name).iterdir())
        if path.suffix in (".sh", ".yaml")
    ]


def outcome(name: str, text: str, content_type: str = "") -> dict[str, Any]:
    """What comes out, as it is kept; of a refusal the faults."""
    try:
        found = (
            import_hived(text, content_type)
            if name == HIVED
            else import_text(name, text, CONTEXT, content_type)
        )
    except ImportRefusedError as refused:
        return {"errors": [error.to_json() for error in refused.errors]}
    return {
        "spec": found.spec,
        "more": list(found.more),
        "nodes": list(found.nodes),
        "warnings": list(found.warnings),
        "unsupported": [entry.to_json() for entry in found.unsupported],
    }


def expected_path(path: Path) -> Path:
    """Where the expected result of a document is kept."""
    return path.with_suffix(".json")


def main() -> None:
    """Write all expected results."""
    for name, path in inputs():
        text = json.dumps(outcome(name, path.read_text()), indent=2, ensure_ascii=False)
        expected_path(path).write_text(f"{text}\n")


if __name__ == "__main__":
    main()
