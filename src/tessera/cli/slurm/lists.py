"""``squeue``, ``sacct``, ``sinfo``, ``scancel`` and ``scontrol show job``."""

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final, NoReturn

import typer

from tessera.cli.exits import UsageError
from tessera.cli.session import Session
from tessera.cli.slurm.tables import Column, lines_of
from tessera.cli.slurm.tasks import number_of, numbers_of
from tessera.cli.slurm.words import STATES, clock, elapsed, node_state, reason_of, span, state_of
from tessera.client import Client

MOST: Final = 1000
_QUEUE: Final = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
_LONG: Final = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R"
_ACCOUNTING: Final = "%12i %10j %10P %10a %7D %10T %9e"
_SCONTROL: Final = """\
Usage: tessera slurm scontrol show job NUMBER

Say all about one job as names and values. Nothing else of scontrol is there: `tessera node`
looks after nodes, and `tessera stop` ends jobs."""
_DETAILED: Final = frozenset("DNRlC")


class _Parser(argparse.ArgumentParser):
    """Says what is wrong as the other commands do; ``-h`` is not always its help."""

    def __init__(self, prog: str, says: str, *, short_help: bool = True) -> None:
        """Take ``--help``, and ``-h`` where Slurm's command has no other meaning for it."""
        super().__init__(prog=f"tessera slurm {prog}", description=says, add_help=False)
        names = ("-h", "--help") if short_help else ("--help",)
        self.add_argument(*names, action="help", help="Show this message and exit.")

    def option(self, *names: str, says: str, **more: Any) -> None:
        """Take an option that is a word, or a flag where ``more`` says so."""
        self.add_argument(*names, help=says, **({"default": "", "metavar": "X"} | more))

    def flag(self, *names: str, says: str) -> None:
        """Take an option without a value."""
        self.add_argument(*names, help=says, action="store_true")

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog.removeprefix('tessera slurm ')}: {message}")


def run_squeue(session: Session, arguments: Sequence[str]) -> None:
    """List jobs that have not ended."""
    parser = _Parser("squeue", "List jobs that have not ended.", short_help=False)
    _filters(parser)
    parser.option("-n", "--name", says="Only jobs of this name.")
    parser.flag("--me", says="Only your own jobs.")
    parser.option("-t", "--states", says="Slurm's states, such as PD,R; all: ended ones too.")
    parser.option("-o", "--format", says="Columns, such as '%%i %%j %%T'.")
    parser.flag("-l", "--long", says="States in full, and time limits.")
    parser.flag("-h", "--noheader", says="No line with the titles.")
    given = parser.parse_args(list(arguments))
    layout = given.format or (_LONG if given.long else _QUEUE)
    with session.client() as client:
        rows = _shown("squeue", _jobs(client, given, _states(given.states), mine=given.me))
        if _DETAILED & set(layout):
            rows = [dict(client.get(f"jobs/{row['id']}/")) for row in rows]
    _echo(lines_of(layout, _columns(), rows, header=not given.noheader))


def run_sacct(session: Session, arguments: Sequence[str]) -> None:
    """List jobs, those that have ended too."""
    parser = _Parser("sacct", "List jobs, those that have ended too.")
    _filters(parser)
    parser.option("-s", "--state", dest="states", says="Slurm's states, such as CD,F.")
    parser.flag("-X", "--allocations", says="One line a job; that is always so here.")
    parser.flag("-n", "--noheader", says="No line with the titles.")
    parser.flag("-P", "--parsable2", says="Columns parted by |.")
    given = parser.parse_args(list(arguments))
    layout = "%i|%j|%P|%a|%D|%T|%e" if given.parsable2 else _ACCOUNTING
    with session.client() as client:
        rows = _shown(
            "sacct", _jobs(client, given, _states(given.states) if given.states else None)
        )
    columns = _columns() | {"D": ("AllocGRES", lambda row: str(row.get("devices", "")))}
    titles = {"i": "JobID", "j": "JobName", "P": "Partition", "a": "Account", "T": "State"}
    columns |= {letter: (title, columns[letter][1]) for letter, title in titles.items()}
    columns["e"] = ("ExitCode", lambda row: f"{row.get('exit_code') or 0}:0")
    _echo(lines_of(layout, columns, rows, header=not given.noheader))


def run_scancel(session: Session, arguments: Sequence[str]) -> None:
    """Stop jobs by number, or those of a person by name, partition or state."""
    says = "Stop jobs by number, or those of a person by name, partition or state."
    parser = _Parser("scancel", says)
    parser.add_argument(
        "numbers",
        nargs="*",
        metavar="JOB",
        help="Numbers of jobs. Tasks of arrays: 12_3, 12_[0-4].",
    )
    parser.option("-u", "--user", says="Jobs of this person.")
    parser.flag("--me", says="Your own jobs.")
    parser.option("-n", "--name", says="Jobs of this name.")
    parser.option("-p", "--partition", says="Jobs in this virtual cluster.")
    parser.option("-t", "--state", says="Only in these of Slurm's states.")
    parser.flag("-Q", "--quiet", says="Taken, and changes nothing.")
    given = parser.parse_args(list(arguments))
    if not given.numbers and not (given.user or given.me or given.name or given.partition):
        raise UsageError("scancel: no job identification provided")
    with session.client() as client:
        wanted = numbers_of(client, given.numbers)
        if not wanted:
            given.jobs, given.account = "", ""
            rows = _jobs(client, given, _states(given.state), mine=given.me)
            wanted = [int(row["id"]) for row in rows]
        for number in wanted:
            client.stop(number)


def run_sinfo(session: Session, arguments: Sequence[str]) -> None:
    """List nodes by type and state, or with ``-N`` one by one."""
    says = "List nodes by type of device and state."
    parser = _Parser("sinfo", says, short_help=False)
    parser.flag("-h", "--noheader", says="No line with the titles.")
    parser.flag("-N", "--Node", says="One line a node.")
    parser.option("-p", "--partition", says="Only nodes with this type of device.")
    given = parser.parse_args(list(arguments))
    with session.client() as client:
        nodes = [
            node.body
            for node in client.nodes()
            if given.partition in ("", str(node.body.get("device_type")))
        ]
    if given.Node:
        columns: dict[str, Column] = {
            "N": ("NODELIST", lambda row: str(row["name"])),
            "P": ("PARTITION", lambda row: str(row.get("device_type") or "")),
            "t": ("STATE", node_state),
            "G": ("GRES", lambda row: f"gpu:{row.get('devices', 0)}"),
        }
        _echo(lines_of("%20N %12P %6t %G", columns, nodes, header=not given.noheader))
        return
    groups = Counter((str(row.get("device_type") or ""), node_state(row)) for row in nodes)
    rows = [
        {
            "type": kind,
            "state": state,
            "count": count,
            "names": ",".join(
                str(row["name"])
                for row in nodes
                if (str(row.get("device_type") or ""), node_state(row)) == (kind, state)
            ),
        }
        for (kind, state), count in sorted(groups.items())
    ]
    summary: dict[str, Column] = {
        "P": ("PARTITION", lambda row: row["type"]),
        "D": ("NODES", lambda row: str(row["count"])),
        "t": ("STATE", lambda row: row["state"]),
        "N": ("NODELIST", lambda row: row["names"]),
    }
    _echo(lines_of("%12P %.5D %6t %N", summary, rows, header=not given.noheader))


def run_scontrol(session: Session, arguments: Sequence[str]) -> None:
    """``scontrol show job N``: one job as names and values."""
    words = list(arguments)
    if words in (["--help"], ["-h"]):
        typer.echo(_SCONTROL)
        return
    if len(words) != 3 or words[0] != "show" or not "jobid".startswith(words[1].lower()[:5]):
        raise UsageError("scontrol: only `scontrol show job NUMBER` is there")
    with session.client() as client:
        row = dict(client.get(f"jobs/{number_of(client, words[2])}/"))
    now = datetime.now(tz=UTC)
    pairs = (
        ("JobId", row["id"]), ("JobName", row["name"]), ("UserId", row["user"]),
        ("Account", row.get("tenant", "")), ("Partition", row["virtual_cluster"]),
        ("Priority", row.get("priority", "")), ("JobState", state_of(row)[1]),
        ("Reason", reason_of(row)), ("RunTime", elapsed(row, now)),
        ("TimeLimit", span(row.get("max_duration"))), ("SubmitTime", clock(row["submitted_at"])),
        ("StartTime", clock(row.get("started_at"))), ("EndTime", clock(row.get("finished_at"))),
        ("NodeList", _nodes(row)), ("NumNodes", _node_count(row)),
        ("TresPerJob", f"gres/gpu:{row.get('devices', 0)}"),
        ("ExitCode", f"{row.get('exit_code') or 0}:0"),
    )  # fmt: skip
    _echo([f"   {name}={_printable(str(value))}" for name, value in pairs])


def _filters(parser: _Parser) -> None:
    parser.option("-u", "--user", says="Only jobs of this person.")
    parser.option("-j", "--jobs", says="Only these numbers, parted by commas, such as 7,12_3.")
    parser.option("-p", "--partition", says="Only jobs in this virtual cluster.")
    parser.option("-A", "--account", says="Only jobs of this tenant.")


def _states(text: str) -> str:
    """Our states for a list of Slurm's; those that have not ended for an empty one."""
    if not text:
        return "live"
    if text.lower() == "all":
        return "live,ended"
    wanted = {word.strip().upper() for word in text.split(",")}
    found = [state for state, names in STATES.items() if wanted & set(names)]
    unknown = wanted - {name for names in STATES.values() for name in names}
    if unknown:
        raise UsageError(f"unknown state {min(unknown)}")
    return ",".join(found)


def _jobs(
    client: Client, given: argparse.Namespace, states: str | None, *, mine: bool = False
) -> Iterator[dict[str, Any]]:
    """The jobs that are asked for, fetched page by page as they are used up."""
    if given.jobs:
        for number in numbers_of(client, [given.jobs]):
            yield dict(client.get(f"jobs/{number}/"))
        return
    name = getattr(given, "name", "") or ""
    for row in client.pages(
        "jobs/",
        state=states,
        user=given.user or None,
        mine=1 if mine else None,
        virtual_cluster=given.partition or None,
        tenant=getattr(given, "account", "") or None,
    ):
        if name in ("", row["name"]):
            yield dict(row)


def _shown(command: str, rows: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """As many rows as are listed; that there are more is said."""
    found = list(islice(rows, MOST))
    if next(rows, None) is not None:
        words = (
            f"these are the newest {MOST} jobs, there are more; name a person, partition or state"
        )
        typer.echo(f"{command}: {words}", err=True)
    return found


def _columns() -> dict[str, Column]:
    now = datetime.now(tz=UTC)
    return {
        "i": ("JOBID", lambda row: str(row["id"])),
        "A": ("JOBID", lambda row: str(row["id"])),
        "j": ("NAME", lambda row: str(row["name"])),
        "u": ("USER", lambda row: str(row["user"])),
        "a": ("ACCOUNT", lambda row: str(row.get("tenant") or "")),
        "P": ("PARTITION", lambda row: str(row["virtual_cluster"])),
        "Q": ("PRIORITY", lambda row: str(row.get("priority", ""))),
        "t": ("ST", lambda row: state_of(row)[0]),
        "T": ("STATE", lambda row: state_of(row)[1]),
        "M": ("TIME", lambda row: elapsed(row, now)),
        "l": ("TIME_LIMIT", lambda row: span(row.get("max_duration"))),
        "D": ("NODES", lambda row: str(_node_count(row))),
        "N": ("NODELIST", _nodes),
        "r": ("REASON", reason_of),
        "R": ("NODELIST(REASON)", _where),
        "S": ("START_TIME", lambda row: clock(row.get("started_at") or row.get("expected_start"))),
        "V": ("SUBMIT_TIME", lambda row: clock(row["submitted_at"])),
        "e": ("END_TIME", lambda row: clock(row.get("finished_at"))),
        "b": ("TRES_PER_NODE", lambda row: f"gres/gpu:{row.get('devices', 0)}"),
    }


def _where(row: Mapping[str, Any]) -> str:
    return _nodes(row) or f"({reason_of(row)})"


def _nodes(row: Mapping[str, Any]) -> str:
    members = row.get("placement") or ()
    return ",".join(dict.fromkeys(str(member["node"]) for member in members))


def _node_count(row: Mapping[str, Any]) -> int:
    """Nodes of a job that has some; before, as many as it has instances."""
    named = {member["node"] for member in row.get("placement") or ()}
    roles = (row.get("spec") or {}).get("roles") or {}
    return len(named) or sum(int(role.get("instances", 1)) for role in roles.values()) or 1


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)


def _echo(lines: Sequence[str]) -> None:
    for line in lines:
        typer.echo(line)
