"""Output of ``--json`` of Slurm's commands, in the format of its data parser v0.0.41.

It contains only fields that Tessera has; other fields of Slurm (uids, sockets, tasks) are omitted.
Times are seconds since 1970, time limits minutes, memory is in MiB.
"""

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from tessera.cli.exits import UsageError
from tessera.cli.output import moment
from tessera.cli.slurm.arguments import Parser
from tessera.cli.slurm.columns import node_count, nodes_of, resources
from tessera.cli.slurm.words import (
    IN_USE,
    LONG_NODE_STATES,
    node_state,
    reason_of,
    state_of,
)

PARSER: Final = "v0.0.41"
_FLAGS: Final[Mapping[str, tuple[str, ...]]] = {
    "CONFIGURING": ("RUNNING", "CONFIGURING"),
    "COMPLETING": ("RUNNING", "COMPLETING"),
}
"""Additional state flags in Slurm's JSON."""

Row = Mapping[str, Any]


def take_json(parser: Parser) -> None:
    """Add the option ``--json`` to a command."""
    summary = f"Print JSON in the format of Slurm's {PARSER}."
    parser.option("--json", summary=summary, nargs="?", const=PARSER, default=None)


def wants_json(given: Any, *, columns: Sequence[str] = ()) -> bool:
    """Return whether the options request JSON.

    Args:
        given: the parsed options.
        columns: the given choice of columns.

    Raises:
        UsageError: another format is requested, or columns are chosen together with JSON.
    """
    if given.json is None:
        return False
    if given.json.removeprefix("data_parser/") != PARSER:
        raise UsageError(f"--json={given.json[:40]} is not supported; use --json={PARSER}")
    if any(columns):
        raise UsageError("--json cannot be combined with a format")
    return True


def document(command: str, key: str, rows: Sequence[Row], warnings: Sequence[str] = ()) -> str:
    """Build the whole output of a command, as text."""
    plugin = {"type": "tessera", "name": "tessera", "data_parser": f"data_parser/{PARSER}"}
    body = {
        key: list(rows),
        "meta": {"plugin": plugin, "command": [command]},
        "errors": [],
        "warnings": [{"description": text, "source": command} for text in warnings],
    }
    # ASCII only, so that names and reasons cannot move the cursor of a terminal.
    return json.dumps(body, indent=2)


def queued_job(row: Row) -> dict[str, Any]:
    """Build a job in the format of ``squeue --json``."""
    return {
        "account": str(row.get("tenant") or ""),
        "end_time": _number(_epoch(row.get("finished_at"))),
        "exit_code": _exit_code(row),
        "job_id": int(row["id"]),
        "job_state": _state(row),
        "name": str(row["name"]),
        "node_count": _number(node_count(row)),
        "nodes": nodes_of(row),
        "partition": str(row["virtual_cluster"]),
        "priority": _number(int(row.get("priority") or 0)),
        "qos": str(row.get("class") or ""),
        "start_time": _number(_epoch(row.get("started_at") or row.get("expected_start"))),
        "state_reason": reason_of(row),
        "submit_time": _number(_epoch(row["submitted_at"])),
        "time_limit": _limit(row.get("max_duration")),
        "tres_req_str": resources(row),
        "user_name": str(row["user"]),
    }


def accounted_job(row: Row, now: datetime) -> dict[str, Any]:
    """Build a job in the format of ``sacct --json``."""
    started, ended = _epoch(row.get("started_at")), _epoch(row.get("finished_at"))
    until = ended or int(now.timestamp())
    return {
        "account": str(row.get("tenant") or ""),
        "allocation_nodes": node_count(row) if row.get("nodes") else 0,
        "exit_code": _exit_code(row),
        "job_id": int(row["id"]),
        "name": str(row["name"]),
        "nodes": nodes_of(row) or "None assigned",
        "partition": str(row["virtual_cluster"]),
        "priority": _number(int(row.get("priority") or 0)),
        "qos": str(row.get("class") or ""),
        "state": {"current": _state(row), "reason": reason_of(row)},
        "time": {
            "elapsed": max(until - started, 0) if started else 0,
            "end": ended,
            "limit": _limit(row.get("max_duration")),
            "start": started,
            "submission": _epoch(row["submitted_at"]),
        },
        "user": str(row["user"]),
    }


def node_group(kind: str, nodes: Sequence[Row]) -> dict[str, Any]:
    """Build a group of equal nodes in the format of ``sinfo --json``.

    Args:
        kind: partition of the nodes.
        nodes: nodes with equal state, number of devices and number of devices in use.
    """
    first, states = nodes[0], [node_state(node) for node in nodes]
    used = sum(state in IN_USE for state in states)
    cpus = [int(float(node.get("cpus") or 0)) for node in nodes]
    memory = [int(node.get("memory_bytes") or 0) >> 20 for node in nodes]
    return {
        "cpus": {"minimum": min(cpus), "maximum": max(cpus), "total": sum(cpus)},
        "gres": {
            "total": f"gpu:{first.get('devices') or 0}",
            "used": f"gpu:{first.get('in_use') or 0}",
        },
        "memory": {"minimum": min(memory), "maximum": max(memory)},
        "node": {"state": _node_state(first)},
        "nodes": {
            "allocated": used,
            "idle": states.count("idle"),
            "other": len(states) - used - states.count("idle"),
            "total": len(states),
            "nodes": [str(node["name"]) for node in nodes],
        },
        "partition": {"name": kind},
        "reason": {"description": str(first.get("state_reason") or "")},
    }


def _node_state(node: Row) -> list[str]:
    """Return the state in Slurm's words; a drained node has ``DRAIN`` as a second word."""
    if node_state(node) in {"drain", "drng"}:
        return [*_node_state({**node, "state": "ready"}), "DRAIN"]
    return [LONG_NODE_STATES[node_state(node)].upper()]


def _state(row: Row) -> list[str]:
    word = state_of(row)[1]
    return list(_FLAGS.get(word, (word,)))


def _number(value: int) -> dict[str, Any]:
    """Build a number in Slurm's format; an unknown time is 0."""
    return {"set": True, "infinite": False, "number": value}


def _limit(seconds: float | None) -> dict[str, Any]:
    if seconds is None:
        return {"set": False, "infinite": True, "number": 0}
    return _number(math.ceil(seconds / 60))


def _epoch(value: object) -> int:
    found = moment(value)
    return 0 if found is None else int(found.astimezone(UTC).timestamp())


def _exit_code(row: Row) -> dict[str, Any]:
    code = row.get("exit_code")
    status = "PENDING" if code is None else "ERROR" if code else "SUCCESS"
    return {
        "status": [status],
        "return_code": {"set": code is not None, "infinite": False, "number": int(code or 0)},
    }
