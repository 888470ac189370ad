"""What a job's pages say of its training at other sizes."""

from collections.abc import Mapping
from typing import Any

from portal.web.components import words


def elastic_words(said: Mapping[str, Any] | None, asked: int) -> str:
    """The bounds of an elastic job and how it trains between them; empty for a rigid one.

    Args:
        said: ``elastic`` of its specification.
        asked: devices that it asks for.
    """
    if said is None:
        return ""
    least, most = said.get("min", asked), said.get("max", asked)
    size = words.plural(most, "device", "devices")
    parts = [f"{words.count(least)} to {size}" if least < most else size]
    if "logical_workers" in said:
        level = f" ({said['determinism']})" if "determinism" in said else ""
        parts.append(
            f"{words.plural(said['logical_workers'], 'logical worker', 'logical workers')}{level}"
        )
    if "initial_batch" in said:
        parts.append(
            f"batch {words.count(said['initial_batch'])} to {words.count(said['max_batch'])}"
        )
    if "total_steps" in said:
        parts.append(words.plural(said["total_steps"], "step", "steps"))
    if "epochs" in said:
        parts.append(words.plural(said["epochs"], "epoch", "epochs"))
    return ", ".join(parts)
