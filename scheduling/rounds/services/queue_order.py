"""Keeps in which order the newest round has tried the waiting jobs of each virtual cluster."""

import hashlib
import json

from scheduling.core.round.decide import Line, Lines
from scheduling.rounds.models import QueueOrder


def write_lines(lines: Lines) -> None:
    """Store the lines that differ from what is stored, within the transaction of the round."""
    stored = dict(QueueOrder.objects.values_list("virtual_cluster_id", "digest"))
    rows = []
    for vc_id in sorted(stored.keys() | lines.keys()):
        line = lines.get(vc_id, Line())
        digest = _digest(line)
        if stored.get(vc_id) != digest:
            rows.append(
                QueueOrder(
                    virtual_cluster_id=vc_id,
                    guaranteed=line.guaranteed,
                    opportunistic=line.opportunistic,
                    digest=digest,
                )
            )
    if rows:
        QueueOrder.objects.bulk_create(
            rows,
            update_conflicts=True,
            unique_fields=["virtual_cluster"],
            update_fields=["guaranteed", "opportunistic", "digest"],
        )


def _digest(line: Line) -> str:
    spelled = json.dumps([line.guaranteed, line.opportunistic])
    return hashlib.sha256(spelled.encode()).hexdigest()[: QueueOrder.DIGEST_LENGTH]
