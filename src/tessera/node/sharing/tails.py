"""New lines of a run's stored reports, for the runners of holder and guests."""

from __future__ import annotations

import json
from typing import Any, Dict, List

from tessera import protocol
from tessera.node.runs import Run

_MOST_BYTES = 128 << 10


class ReportTail:
    """Reads the reports of a run as they are stored, beginning with its next line."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._offset = run.reports_end()

    def lines(self) -> List[Dict[str, Any]]:
        """Return the new lines that are JSON objects; a line is returned when it is complete."""
        try:
            start, content, _ = self._run.read(protocol.STREAM_REPORTS, self._offset, _MOST_BYTES)
        except OSError:
            return []
        whole = content.rfind(b"\n") + 1
        if not whole and len(content) >= _MOST_BYTES:
            whole = len(content)  # the longest line is shorter: skip this data
        self._offset = start + whole if content else self._offset
        found = []
        for line in content[:whole].splitlines():
            try:
                document = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(document, dict):
                found.append(document)
        return found
