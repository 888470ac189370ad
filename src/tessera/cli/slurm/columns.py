"""What Slurm's commands say of a job: by the letters of ``-o``, and by name."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from tessera.cli.slurm.tables import Column
from tessera.cli.slurm.words import clock, elapsed, reason_of, span, state_of
from tessera.cli.times import moment

_MIB: Final = 1 << 20
DETAILED: Final = frozenset("CEFKkm")
"""Letters of what only a whole job says, not its row in a list."""

NAMES: Final[Mapping[str, str]] = {
    "account": "a", "arrayjobid": "F", "arraytaskid": "K", "comment": "k", "dependency": "E",
    "endtime": "e", "jobarrayid": "i", "jobid": "i", "minmemory": "m", "name": "j",
    "nodelist": "N", "numcpus": "C", "numnodes": "D", "partition": "P", "priority": "Q",
    "prioritylong": "Q", "qos": "q", "reason": "r", "reasonlist": "R", "starttime": "S",
    "state": "T", "statecompact": "t", "submittime": "V", "timeleft": "L", "timelimit": "l",
    "timeused": "M", "tres-per-node": "b", "username": "u",
}  # fmt: skip
"""Letters by the names of ``squeue --Format``."""

_ACCOUNTING: Final[Mapping[str, tuple[str, str]]] = {
    "JobID": ("jobid", "i"), "JobIDRaw": ("jobidraw", "i"), "JobName": ("jobname", "j"),
    "Partition": ("partition", "P"), "Account": ("account", "a"), "User": ("user", "u"),
    "State": ("state", "T"), "Elapsed": ("elapsed", "M"), "Timelimit": ("timelimit", "l"),
    "Submit": ("submit", "V"), "Start": ("start", "S"), "End": ("end", "e"),
    "NNodes": ("nnodes", "D"), "NodeList": ("nodelist", "N"), "AllocCPUS": ("alloccpus", "C"),
    "NCPUS": ("ncpus", "C"), "ReqMem": ("reqmem", "m"), "Priority": ("priority", "Q"),
    "QOS": ("qos", "q"), "Reason": ("reason", "r"), "Comment": ("comment", "k"),
}  # fmt: skip


def job_columns(now: datetime | None = None) -> dict[str, Column]:
    """Columns by the letters that ``squeue -o`` takes."""
    at = now or datetime.now(tz=UTC)
    return {
        "A": ("JOBID", lambda row: str(row["id"])),
        "C": ("CPUS", _cpus),
        "D": ("NODES", lambda row: str(node_count(row))),
        "E": ("DEPENDENCY", _dependency),
        "F": ("ARRAY_JOB_ID", lambda row: str(_env(row).get("SLURM_ARRAY_JOB_ID") or row["id"])),
        "K": ("ARRAY_TASK_ID", lambda row: str(_env(row).get("SLURM_ARRAY_TASK_ID") or "N/A")),
        "L": ("TIME_LEFT", lambda row: _left(row, at)),
        "M": ("TIME", lambda row: elapsed(row, at)),
        "N": ("NODELIST", nodes_of),
        "P": ("PARTITION", lambda row: str(row["virtual_cluster"])),
        "Q": ("PRIORITY", _priority),
        "R": ("NODELIST(REASON)", lambda row: nodes_of(row) or f"({reason_of(row)})"),
        "S": ("START_TIME", lambda row: clock(row.get("started_at") or row.get("expected_start"))),
        "T": ("STATE", lambda row: state_of(row)[1]),
        "V": ("SUBMIT_TIME", lambda row: clock(row["submitted_at"])),
        "a": ("ACCOUNT", lambda row: str(row.get("tenant") or "")),
        "b": ("TRES_PER_NODE", _per_node),
        "e": ("END_TIME", lambda row: clock(row.get("finished_at"))),
        "i": ("JOBID", lambda row: str(row["id"])),
        "j": ("NAME", lambda row: str(row["name"])),
        "k": ("COMMENT", lambda row: str(row.get("note") or "(null)")),
        "l": ("TIME_LIMIT", lambda row: span(row.get("max_duration"))),
        "m": ("MIN_MEMORY", _memory),
        "p": ("PRIORITY", _priority),
        "q": ("QOS", lambda row: str(row.get("class") or "")),
        "r": ("REASON", reason_of),
        "t": ("ST", lambda row: state_of(row)[0]),
        "u": ("USER", lambda row: str(row["user"])),
    }


def accounting_columns() -> tuple[dict[str, Column], dict[str, str]]:
    """Columns of ``sacct`` by key, and keys by the names that ``--format`` takes."""
    columns = job_columns()
    found: dict[str, Column] = {
        name: (title, columns[letter][1]) for title, (name, letter) in _ACCOUNTING.items()
    }
    found["exitcode"] = ("ExitCode", lambda row: f"{row.get('exit_code') or 0}:0")
    found["alloctres"] = ("AllocTRES", lambda row: resources(row) if row.get("nodes") else "")
    found["reqtres"] = ("ReqTRES", resources)
    found["allocgres"] = ("AllocGRES", lambda row: str(row.get("devices", "")))
    return found, {name: name for name in found}


def needs_details(names: frozenset[str]) -> bool:
    """Whether columns of ``sacct`` say what only whole jobs say."""
    return any(letter in DETAILED for name, letter in _ACCOUNTING.values() if name in names)


def nodes_of(row: Mapping[str, Any]) -> str:
    """Names of the nodes that a job has, parted by commas."""
    return ",".join(str(name) for name in row.get("nodes") or ())


def node_count(row: Mapping[str, Any]) -> int:
    """Nodes of a job that has some; before, as many as it has instances."""
    return len(row.get("nodes") or ()) or int(row.get("instances") or 1)


def resources(row: Mapping[str, Any]) -> str:
    """Nodes and devices of the whole job, as Slurm writes them."""
    return f"node={node_count(row)},gres/gpu={row.get('devices', 0)}"


def _per_node(row: Mapping[str, Any]) -> str:
    """Devices on each node; ``N/A`` where nodes have not as many each."""
    each, rest = divmod(int(row.get("devices") or 0), node_count(row))
    return "N/A" if rest else f"gres/gpu:{each}"


def _roles(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(((row.get("spec") or {}).get("roles") or {}).values())


def _priority(row: Mapping[str, Any]) -> str:
    return str(row.get("priority", ""))


def _cpus(row: Mapping[str, Any]) -> str:
    """Of all instances; what comes along with devices is not known here."""
    found = [(role.get("cpus"), int(role.get("instances", 1))) for role in _roles(row)]
    if not found or any(cpus is None for cpus, _ in found):
        return "N/A"
    return f"{sum(float(cpus or 0) * instances for cpus, instances in found):g}"


def _memory(row: Mapping[str, Any]) -> str:
    """Of each instance of the first role."""
    memory = next((role.get("memory") for role in _roles(row)), None)
    return "0" if memory is None else f"{int(memory) // _MIB}M"


def _env(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return next(iter(_roles(row)), {}).get("env") or {}


def _dependency(row: Mapping[str, Any]) -> str:
    after = row.get("after") or ()
    numbers = ":".join(str(one["id"] if isinstance(one, Mapping) else one) for one in after)
    return f"afterok:{numbers}" if numbers else "(null)"


def _left(row: Mapping[str, Any], now: datetime) -> str:
    limit, started = row.get("max_duration"), moment(row.get("started_at"))
    if limit is None or started is None:
        return span(limit)
    return span(limit - (now - started).total_seconds())
