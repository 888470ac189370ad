"""Commands about nodes: add one after looking at its key, list, cordon, uncordon, drain."""

import re
import sys
from typing import Annotated, Any

import typer
from rich.markup import escape

from tessera.cli.exits import UsageError
from tessera.cli.output import AsJson, err, out, print_json, print_table, state_text
from tessera.cli.session import Session
from tessera.client import ApiError, Client, seen_fingerprint
from tessera.results import Node

app = typer.Typer(help="Nodes of the cluster.", no_args_is_help=True, rich_markup_mode=None)

NodeName = Annotated[str, typer.Argument(help="Name or number of the node.")]
Reason = Annotated[str, typer.Option("--reason", help="Shown to everybody who asks why.")]


def register(parent: typer.Typer) -> None:
    """Add the commands of this module."""
    parent.add_typer(app, name="node")


@app.command("add")
def add(
    context: typer.Context,
    address: Annotated[
        str,
        typer.Argument(metavar="USER@HOST[:PORT]", help="Whom the portal signs in as, and where."),
    ],
    name: Annotated[str, typer.Option("--name", help="Name; the host's when left out.")] = "",
    fingerprint: Annotated[
        str, typer.Option("--fingerprint", help="The host key's, known from elsewhere.")
    ] = "",
    label: Annotated[list[str] | None, typer.Option("--label", help="NAME=VALUE.")] = None,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Trust the key that is seen.")] = False,
    as_json: AsJson = False,
) -> None:
    """Add a node: shows the fingerprint of its host key and asks before trusting it."""
    wanted = parse_address(address) | {"labels": dict(_pair(text) for text in label or ())}
    wanted["name"] = name or _name_of(str(wanted["host"]))
    if fingerprint:
        wanted["host_key_fingerprint"] = fingerprint
    session: Session = context.obj
    with session.client() as client:
        node = _add_after_asking(client, wanted, yes=yes)
    if as_json:
        print_json(dict(node.body))
    else:
        out().print(f"node {node.id} {escape(node.name)}: {state_text(node.state)}")


@app.command("list")
def list_nodes(context: typer.Context, *, as_json: AsJson = False) -> None:
    """List the nodes with their states."""
    session: Session = context.obj
    with session.client() as client:
        found = list(client.nodes())
    if as_json:
        print_json([dict(node.body) for node in found])
        return
    print_table(
        ("ID", "NAME", "STATE", "ISOLATION", "TENANT", "ADDRESS", "REASON"),
        (
            (
                str(node.id),
                escape(node.name),
                state_text(node.state),
                escape(node.isolation_level),
                escape(node.owner),
                escape(f"{node.host}:{node.port}" if node.host else ""),
                escape(node.reason),
            )
            for node in found
        ),
        empty="No nodes. Add one: tessera node add USER@HOST",
    )


@app.command("cordon")
def cordon(
    context: typer.Context, node: NodeName, reason: Reason = "", *, as_json: AsJson = False
) -> None:
    """Let nothing new start on a node; what runs goes on."""
    _act(context, node, "cordon", reason, as_json=as_json)


@app.command("uncordon")
def uncordon(
    context: typer.Context, node: NodeName, reason: Reason = "", *, as_json: AsJson = False
) -> None:
    """Let jobs start on a node again."""
    _act(context, node, "uncordon", reason, as_json=as_json)


@app.command("drain")
def drain(
    context: typer.Context, node: NodeName, reason: Reason = "", *, as_json: AsJson = False
) -> None:
    """Move the jobs of a node elsewhere, and let nothing new start on it."""
    _act(context, node, "drain", reason, as_json=as_json)


@app.command("declare-dead")
def declare_dead(
    context: typer.Context,
    node: NodeName,
    reason: Reason,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say that a node will not come back, so that its jobs restart elsewhere at once.

    Say so only of a node that is off: a job that still ran there would run twice.
    """
    if not yes and not _confirmed(f"Is {node} really off? Its jobs will be started elsewhere."):
        raise UsageError("nothing was done: confirm, or give --yes")
    _act(context, node, "declare-dead", reason, as_json=as_json)


@app.command("reset-isolation")
def reset_isolation(
    context: typer.Context,
    node: NodeName,
    reason: Reason,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Take a node without isolation from its tenant, so that another tenant may use it.

    Clean the node first: a job may have left files, cron jobs or keys behind.
    """
    if not yes and not _confirmed(f"Is {node} clean? Jobs of other tenants will run there."):
        raise UsageError("nothing was done: confirm, or give --yes")
    _act(context, node, "reset-isolation", reason, as_json=as_json)


@app.command("dedicate")
def dedicate(
    context: typer.Context,
    node: NodeName,
    tenants: Annotated[
        list[str] | None, typer.Argument(help="Names of tenants; none: all tenants.")
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Let a node take jobs of some tenants only; without tenants it takes those of all."""
    _change(context, node, {"dedicated_to": tenants or []}, as_json=as_json)


@app.command("visible-paths")
def visible_paths(
    context: typer.Context,
    node: NodeName,
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH[:rw][@TENANT,...]", help="What jobs may see; none: nothing."),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Set what jobs may see of a node besides their own directories."""
    wanted = [parse_visible_path(text) for text in paths or ()]
    _change(context, node, {"visible_paths": wanted}, as_json=as_json)


def parse_visible_path(text: str) -> dict[str, Any]:
    """``PATH[:rw][@TENANT,...]`` as ``path``, ``writable`` and ``tenants``."""
    place, _, names = text.partition("@")
    path, separator, mode = place.partition(":")
    if separator and mode not in ("ro", "rw"):
        raise UsageError(f"{text!r} is not a valid path: write PATH, PATH:rw or PATH:rw@TENANT")
    tenants = [name for name in names.split(",") if name]
    return {"path": path, "writable": mode == "rw", "tenants": tenants}


def parse_address(address: str) -> dict[str, Any]:
    """``USER@HOST[:PORT]`` as ``user``, ``host`` and ``port``; IPv6 hosts stand in brackets."""
    found = re.fullmatch(r"([^@\s]+)@(?:\[([^\]\s]+)\]|([^:@\s]+))(?::(\d{1,5}))?", address)
    if found is None or not 0 < int(found[4] or 22) < 65536:
        raise UsageError(f"{address!r} is no address: write USER@HOST or USER@HOST:PORT")
    return {"user": found[1], "host": found[2] or found[3], "port": int(found[4] or 22)}


def _add_after_asking(client: Client, wanted: dict[str, Any], *, yes: bool) -> Node:
    try:
        return client.add_node(wanted)
    except ApiError as error:
        seen = seen_fingerprint(error)
        if not seen or "host_key_fingerprint" in wanted:
            raise
    err().print(f"{wanted['host']}:{wanted['port']} shows the host key {seen}", markup=False)
    if not yes and not _confirmed("Is this the key of that machine?"):
        raise UsageError("nothing was added: confirm the key, or give --fingerprint or --yes")
    return client.add_node(wanted | {"host_key_fingerprint": seen})


def _confirmed(question: str) -> bool:
    return sys.stdin.isatty() and typer.confirm(question, err=True)


def _act(context: typer.Context, name: str, action: str, reason: str, *, as_json: bool) -> None:
    session: Session = context.obj
    with session.client() as client:
        node = client.act_on_node(_id_of(client, name), action, reason=reason)
    if as_json:
        print_json(dict(node.body))
    else:
        out().print(f"{escape(node.name)}: {state_text(node.state)}")


def _change(context: typer.Context, name: str, changes: dict[str, Any], *, as_json: bool) -> None:
    session: Session = context.obj
    with session.client() as client:
        node = client.update_node(_id_of(client, name), changes)
    if as_json:
        print_json(dict(node.body))
    else:
        out().print(f"{escape(node.name)}: {state_text(node.state)}")


def _id_of(client: Client, name: str) -> int:
    nodes = list(client.nodes())
    found = [node.id for node in nodes if node.name == name]
    found += [node.id for node in nodes if str(node.id) == name]
    if not found:
        names = ", ".join(node.name for node in nodes) or "none"
        raise UsageError(f"there is no node {name!r}; there are: {names}")
    return found[0]


def _name_of(host: str) -> str:
    """The first label of a host name; an address whole, since its first part tells nothing."""
    is_address = re.search(r"[\d:]$", host) is not None
    chosen = host if is_address else host.partition(".")[0]
    return re.sub(r"[^a-z0-9-]+", "-", chosen.lower())


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise UsageError(f"--label {text!r} is not of the form NAME=VALUE")
    return name, value
