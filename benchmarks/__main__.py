"""``make bench``: runs every benchmark in a separate process and writes one file of entries."""

import argparse
import json
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"
MODULES = (
    "latency",
    "rounds",
    "pages",
    "metrics",
    "viewers",
    "submits",
    "paint",
    "cells",
    "simulation",
    "elastic",
    "resizes",
    "policies",
    "isolation",
    "hybrid",
    "guests",
    "sessions",
)


def main() -> None:
    """Run the named benchmarks, or all; the file is written even after a failure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", default=MODULES, metavar="MODULE")
    parser.add_argument("--output", type=Path, default=RESULTS / "latest.json")
    options = parser.parse_args()
    entries: list[dict[str, object]] = []
    failed = []
    for module in options.modules or MODULES:
        print(f"{module} ...", file=sys.stderr, flush=True)
        done = subprocess.run(
            [sys.executable, "-m", f"benchmarks.{module}"],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            failed.append(module)
            continue
        entries += _entries(done.stdout)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(entries, indent=2) + "\n")
    for entry in entries:
        print(f"{entry['name']:48} {entry['value']:>12} {entry['unit']:6} {entry['context']}")
    print(f"{len(entries)} entries in {options.output}; {_machine()}", file=sys.stderr)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def _entries(text: str) -> list[dict[str, object]]:
    """Parse a JSON list, or one JSON entry per line."""
    if text.lstrip().startswith("["):
        found: list[dict[str, object]] = json.loads(text)
        return found
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def _machine() -> str:
    at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"{platform.machine()}, Python {platform.python_version()}, {at}"


if __name__ == "__main__":
    main()
