"""Columns of Slurm's tables: formats such as ``%.18i %t`` or ``jobid:10``, and values of a job."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from tessera.cli.exits import UsageError
from tessera.cli.output import moment
from tessera.cli.slurm.words import clock, elapsed, reason_of, span, state_of

_FIELD: Final = re.compile(r"%(\.)?([0-9]{1,3})?([A-Za-z])")
_NAMED: Final = re.compile(r"([A-Za-z_-]+)(?:[:%]([.-])?([0-9]{1,3}))?")
_MIB: Final = 1 << 20
DETAILED: Final = frozenset("CEFKkm")
"""Letters of columns that need details of a job, not only its row in a list."""

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

Column = tuple[str, Callable[[Mapping[str, Any]], str]]


@dataclass(frozen=True, slots=True)
class Cell:
    """Position and width of a column in a line.

    Attributes:
        key: letter or name of the column.
        width: width in characters; None for the length of the text.
        right: the text is right-aligned.
    """

    key: str
    width: int | None = None
    right: bool = False


Layout = tuple[str | Cell, ...]
"""The cells of a line, and the texts between them."""


def by_letters(text: str) -> Layout:
    """Parse the layout of ``-o``: fields such as ``%.10i`` and the text between them."""
    parts: list[str | Cell] = []
    end = 0
    for match in _FIELD.finditer(text):
        width = int(match[2]) if match[2] else None
        parts += [text[end : match.start()], Cell(match[3], width, bool(match[1]))]
        end = match.end()
    return (*parts, text[end:])


def by_names(
    text: str, names: Mapping[str, str], *, between: str = "", width: int | None = None
) -> Layout:
    """Parse ``--Format`` of squeue and ``--format`` of sacct: ``jobid:10,state`` or ``%10``.

    Args:
        text: the names, separated by commas.
        names: keys of columns by their names in lower case.
        between: separator of two fields.
        width: default width of a field.

    Raises:
        UsageError: a name is unknown.
    """
    parts: list[str | Cell] = []
    for each in text.split(","):
        match = _NAMED.fullmatch(each.strip())
        key = names.get(match[1].lower()) if match else None
        if match is None or key is None:
            raise UsageError(f"unknown field {each[:40]}; use one of {', '.join(names)}")
        cell = Cell(key, int(match[3]) if match[3] else width, match[2] == ".")
        parts += [between, cell] if parts else [cell]
    return tuple(parts)


def keys_of(layout: Layout) -> frozenset[str]:
    """Return the keys of the columns in a layout."""
    return frozenset(part.key for part in layout if isinstance(part, Cell))


def lines_of(
    layout: Layout,
    columns: Mapping[str, Column],
    rows: Sequence[Mapping[str, Any]],
    *,
    header: bool = True,
) -> list[str]:
    """Format rows as lines.

    Args:
        layout: the cells and the text between them.
        columns: by key, the title and the function that formats a row.
        rows: the rows to show.
        header: whether the first line has the titles.

    Raises:
        UsageError: the layout names an unknown field.
    """
    unknown = keys_of(layout) - set(columns)
    if unknown:
        known = ", ".join(f"%{letter}" for letter in sorted(columns))
        raise UsageError(f"unknown field %{min(unknown)}; use one of {known}")

    def line(row: Mapping[str, Any] | None) -> str:
        def text_of(part: str | Cell) -> str:
            if isinstance(part, str):
                return part
            title, text = columns[part.key]
            return _fit(title if row is None else text(row), part)

        return "".join(map(text_of, layout)).rstrip()

    return [*([line(None)] if header else []), *(line(row) for row in rows)]


def printable(text: str) -> str:
    """Return ``text`` without control characters, which could drive a terminal."""
    return "".join(char if char.isprintable() else "?" for char in text)


def _fit(text: str, cell: Cell) -> str:
    shown = printable(text)
    if cell.width is None:
        return shown
    cut = shown[: cell.width]
    return cut.rjust(cell.width) if cell.right else cut.ljust(cell.width)


def job_columns() -> dict[str, Column]:
    """Return columns by the format letters of ``squeue -o``."""
    now = datetime.now(tz=UTC)
    return {
        "A": ("JOBID", lambda row: str(row["id"])),
        "C": ("CPUS", _cpus),
        "D": ("NODES", lambda row: str(node_count(row))),
        "E": ("DEPENDENCY", _dependency),
        "F": ("ARRAY_JOB_ID", lambda row: str(_env(row).get("SLURM_ARRAY_JOB_ID") or row["id"])),
        "K": ("ARRAY_TASK_ID", lambda row: str(_env(row).get("SLURM_ARRAY_TASK_ID") or "N/A")),
        "L": ("TIME_LEFT", lambda row: _left(row, now)),
        "M": ("TIME", lambda row: elapsed(row, now)),
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
    """Return columns of ``sacct`` by key, and keys by the names of ``--format``."""
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
    """Return whether columns of ``sacct`` need fields that only whole jobs have."""
    return any(letter in DETAILED for name, letter in _ACCOUNTING.values() if name in names)


def nodes_of(row: Mapping[str, Any]) -> str:
    """Return the names of a job's nodes, separated by commas."""
    return ",".join(str(name) for name in row.get("nodes") or ())


def node_count(row: Mapping[str, Any]) -> int:
    """Return the number of nodes; before a start, of instances."""
    return len(row.get("nodes") or ()) or int(row.get("instances") or 1)


def resources(row: Mapping[str, Any]) -> str:
    """Return nodes and devices of the whole job in Slurm's format."""
    return f"node={node_count(row)},gres/gpu={row.get('devices', 0)}"


def _per_node(row: Mapping[str, Any]) -> str:
    """Return devices on each node; ``N/A`` if nodes have different numbers."""
    each, rest = divmod(int(row.get("devices") or 0), node_count(row))
    return "N/A" if rest else f"gres/gpu:{each}"


def _roles(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(((row.get("spec") or {}).get("roles") or {}).values())


def _priority(row: Mapping[str, Any]) -> str:
    return str(row.get("priority", ""))


def _cpus(row: Mapping[str, Any]) -> str:
    """Return the CPUs of all instances; ``N/A`` if a role does not request them."""
    found = [(role.get("cpus"), int(role.get("instances", 1))) for role in _roles(row)]
    if not found or any(cpus is None for cpus, _ in found):
        return "N/A"
    return f"{sum(float(cpus or 0) * instances for cpus, instances in found):g}"


def _memory(row: Mapping[str, Any]) -> str:
    """Return the memory of each instance of the first role."""
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
