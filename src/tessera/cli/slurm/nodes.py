"""``sinfo``: nodes by type of device and state."""

from collections.abc import Mapping, Sequence, Set
from typing import Any, Final

import typer

from tessera.cli.session import Session
from tessera.cli.slurm.arguments import Parser
from tessera.cli.slurm.columns import Column, by_letters, keys_of, lines_of
from tessera.cli.slurm.documents import document, node_group, take_json, wants_json
from tessera.cli.slurm.words import IN_USE, LONG_NODE_STATES, node_state, read_node_states
from tessera.results import types_of_node

_GROUPS: Final = "%12P %.5D %6t %N"
_LONG: Final = "%12P %.5a %.10l %.5D %.11T %N"
_SHORT: Final = "%12P %.5a %.10l %.16F %N"
_SINGLE: Final = "%20N %12P %6t %G"
_LONG_SINGLE: Final = "%20N %.5D %12P %.11T %.4c %.8m %10G %E"
_REASONS: Final = "%20E %19H %N"
_OF_GROUPS: Final = frozenset("DFN")
"""Letters of columns that describe several nodes together."""

_MIB: Final = 1 << 20


def run_sinfo(session: Session, arguments: Sequence[str]) -> None:
    """List nodes by device type and state, or one per line with -N."""
    parser = Parser("sinfo", "List nodes by device type and state.", short_help=False)
    parser.flag("-h", "--noheader", summary="Omit the header line.")
    parser.flag("-N", "--Node", summary="One line per node.")
    parser.flag("-l", "--long", summary="More columns.")
    parser.flag(
        "-s", "--summarize", summary="One line per device type: nodes in use/idle/other/all."
    )
    parser.flag("-R", "--list-reasons", summary="Reasons of nodes that are not ready.")
    parser.option("-o", "--format", summary="Columns, such as '%%P %%D %%t %%N'.")
    parser.option("-n", "--nodes", summary="Only nodes of these names.")
    parser.option("-t", "--states", summary="Only nodes in these states, such as idle,drain.")
    parser.option("-p", "--partition", summary="Only nodes with these device types.")
    take_json(parser)
    given = parser.parse_args(list(arguments))
    as_json = wants_json(given, columns=[given.format, "s" if given.summarize else ""])
    states = read_node_states(given.states)
    with session.client() as client:
        nodes = [node.body for node in client.nodes() if _is_wanted(node.body, given, states)]
    if as_json:
        typer.echo(document("sinfo", "sinfo", _as_json(nodes, single=given.Node)))
        return
    single = given.Node
    usual = {
        (False, False): _GROUPS, (False, True): _LONG,
        (True, False): _SINGLE, (True, True): _LONG_SINGLE,
    }[single, given.long]  # fmt: skip
    text = given.format or (_REASONS if given.list_reasons else "") or usual
    if given.summarize and not given.format:
        text = _SHORT
    layout = by_letters(text)
    columns = _columns()
    by = [columns[key][1] for key in sorted(keys_of(layout) & columns.keys() - _OF_GROUPS)]
    groups: dict[object, list[Mapping[str, Any]]] = {}
    for node in nodes:
        key = node["name"] if single else tuple(text_of({"of": [node]}) for text_of in by)
        groups.setdefault(key, []).append(node)
    rows = [{"of": group} for group in groups.values()]
    rows.sort(key=lambda row: (_kind(row), node_state(row["of"][0])))
    for line in lines_of(layout, columns, rows, header=not given.noheader):
        typer.echo(line)


def _as_json(nodes: Sequence[Mapping[str, Any]], *, single: bool) -> list[dict[str, Any]]:
    """Return the nodes as JSON: groups of equal nodes, or each node separately."""
    groups: dict[object, list[Mapping[str, Any]]] = {}
    for node in nodes:
        said = ("device_type", "state", "state_reason", "devices", "in_use")
        key = node["name"] if single else tuple(node.get(name) for name in said)
        groups.setdefault(key, []).append(node)
    return [node_group(_kind({"of": group}), group) for group in groups.values()]


def _is_wanted(node: Mapping[str, Any], given: Any, states: Set[str]) -> bool:
    state = node_state(node)
    kinds, names = (
        {word for word in text.lower().split(",") if word}
        for text in (given.partition, given.nodes)
    )
    return (
        (not kinds or bool(kinds & {kind.lower() for kind in types_of_node(node)}))
        and (not names or str(node["name"]).lower() in names)
        and (not states or state in states)
        and (not given.list_reasons or state not in IN_USE | {"idle"})
    )


def _columns() -> dict[str, Column]:
    return {
        "D": ("NODES", lambda row: str(len(row["of"]))),
        "E": ("REASON", lambda row: str(_first(row, "state_reason") or "none")),
        "F": ("NODES(A/I/O/T)", _counts),
        "G": ("GRES", lambda row: f"gpu:{_first(row, 'devices') or 0}"),
        "H": ("TIMESTAMP", lambda row: str(_first(row, "state_since") or "")[:19]),
        "N": ("NODELIST", lambda row: ",".join(str(node["name"]) for node in row["of"])),
        "P": ("PARTITION", _kind),
        "T": ("STATE", lambda row: LONG_NODE_STATES[node_state(row["of"][0])]),
        "a": ("AVAIL", lambda row: "up"),
        "c": ("CPUS", lambda row: f"{float(_first(row, 'cpus') or 0):g}"),
        "l": ("TIMELIMIT", lambda row: "infinite"),
        "m": ("MEMORY", lambda row: str(int(_first(row, "memory_bytes") or 0) // _MIB)),
        "n": ("HOSTNAMES", lambda row: str(_first(row, "name"))),
        "t": ("STATE", lambda row: node_state(row["of"][0])),
    }


def _kind(row: Mapping[str, Any]) -> str:
    return str(_first(row, "device_type") or "")


def _first(row: Mapping[str, Any], key: str) -> Any:
    return row["of"][0].get(key)


def _counts(row: Mapping[str, Any]) -> str:
    states = [node_state(node) for node in row["of"]]
    used = sum(state in IN_USE for state in states)
    idle = states.count("idle")
    return f"{used}/{idle}/{len(states) - used - idle}/{len(states)}"
