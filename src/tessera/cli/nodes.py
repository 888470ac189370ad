"""Commands for nodes: add after checking the host key, list, cordon, uncordon, drain."""

import re
import subprocess
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.markup import escape

from tessera.cli.exits import UsageError
from tessera.cli.output import AsJson, err, out, print_json, print_table, state_text
from tessera.cli.session import Session
from tessera.client import ApiError, Client
from tessera.client_errors import JUMP_KEY, seen_key
from tessera.results import Node, types_of_node

app = typer.Typer(help="Nodes of the cluster.", no_args_is_help=True, rich_markup_mode=None)

_KEY = re.compile(r"ssh-[a-z0-9-]+ [A-Za-z0-9+/=]+(?: [^\n]*)?")
_INSTALL = (
    "umask 077; mkdir -p ~/.ssh && read -r key && touch ~/.ssh/authorized_keys &&"
    ' { grep -qxF "$key" ~/.ssh/authorized_keys || echo "$key" >> ~/.ssh/authorized_keys; }'
)

NodeName = Annotated[str, typer.Argument(help="Name or number of the node.")]
DeviceNumber = Annotated[int, typer.Argument(help="Number of the device on the node.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
Reason = Annotated[str, typer.Option("--reason", help="Reason, shown to users of the node.")]


@app.command("add")
def add(
    context: typer.Context,
    address: Annotated[
        str,
        typer.Argument(metavar="USER@HOST[:PORT]", help="Account and address for SSH."),
    ],
    name: Annotated[str, typer.Option("--name", help="Name; default: from the host name.")] = "",
    fingerprint: Annotated[
        str, typer.Option("--fingerprint", help="Expected fingerprint of the host key.")
    ] = "",
    label: Annotated[
        list[str] | None, typer.Option("--label", help="NAME=VALUE; repeatable.")
    ] = None,
    *,
    jump: Annotated[
        str,
        typer.Option(
            "--jump",
            metavar="USER@HOST[:PORT]",
            help="SSH server through which the portal reaches the node.",
        ),
    ] = "",
    jump_fingerprint: Annotated[
        str, typer.Option("--jump-fingerprint", help="Expected fingerprint of the jump host.")
    ] = "",
    install_key: Annotated[
        bool,
        typer.Option(
            "--install-key",
            help="Authorize the portal's key on the node first, with your own ssh access.",
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Trust the presented host key without asking.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Add a node. Shows the fingerprint of its host key and asks before trusting it."""
    wanted = parse_address(address) | {"labels": dict(_pair(text) for text in label or ())}
    wanted["name"] = name or _name_of(str(wanted["host"]))
    if fingerprint:
        wanted["host_key_fingerprint"] = fingerprint
    if jump:
        parse_address(jump)
        wanted["jump_host"] = jump
    if jump_fingerprint:
        wanted["jump_host_key_fingerprint"] = jump_fingerprint
    session: Session = context.obj
    with session.client() as client:
        if install_key:
            _install_key(client.portal_key(), wanted)
        node = _add_after_asking(client, wanted, yes=yes)
    if as_json:
        print_json(dict(node.body))
    else:
        out().print(f"node {node.id} {escape(node.name)}: {state_text(node.state)}")


def _free(body: Mapping[str, Any]) -> str:
    """Return the number of healthy devices without a job, or an empty text if unknown."""
    if "healthy" not in body or "in_use" not in body:
        return ""
    return str(max(0, int(body["healthy"]) - int(body["in_use"])))


@app.command("list")
def list_nodes(context: typer.Context, *, as_json: AsJson = False) -> None:
    """List nodes with state, isolation level and address."""
    session: Session = context.obj
    with session.client() as client:
        found = list(client.nodes())
    if as_json:
        print_json([dict(node.body) for node in found])
        return
    print_table(
        (
            "ID",
            "NAME",
            "STATE",
            "TYPE",
            "DEVICES",
            "FREE",
            "ISOLATION",
            "TENANT",
            "ADDRESS",
            "REASON",
        ),
        (
            (
                str(node.id),
                escape(node.name),
                state_text(node.state),
                escape(", ".join(types_of_node(node.body))),
                str(node.body.get("devices", "")),
                _free(node.body),
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
    """Stop new jobs from starting on a node; running jobs continue."""
    _act(context, node, "cordon", reason, as_json=as_json)


@app.command("uncordon")
def uncordon(
    context: typer.Context, node: NodeName, reason: Reason = "", *, as_json: AsJson = False
) -> None:
    """Allow new jobs on a node again."""
    _act(context, node, "uncordon", reason, as_json=as_json)


@app.command("drain")
def drain(
    context: typer.Context, node: NodeName, reason: Reason = "", *, as_json: AsJson = False
) -> None:
    """Cordon a node and requeue its jobs, which save their work first."""
    _act(context, node, "drain", reason, as_json=as_json)


@app.command("declare-dead")
def declare_dead(
    context: typer.Context,
    node: NodeName,
    reason: Reason,
    *,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Declare that a node will not return, so that its jobs restart on other nodes now.

    Switch the node off first: a job that still runs there would run twice.
    """
    _require_yes(f"Is {node} switched off? Its jobs restart on other nodes.", yes=yes)
    _act(context, node, "declare-dead", reason, as_json=as_json)


@app.command("label")
def label_nodes(
    context: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(help="Nodes, and labels NAME=VALUE; NAME= removes one.", metavar="WORDS"),
    ],
) -> None:
    """Set labels of nodes; rack and pool are the groups that `within` of jobs means."""
    labels = dict(_pair(word) for word in words if "=" in word)
    if not 0 < len(labels) < len(words):
        raise UsageError("Give at least one node and one label NAME=VALUE.")
    session: Session = context.obj
    with session.client() as client:
        for name in (word for word in words if "=" not in word):
            before = client.get(f"nodes/{id_of(client, name)}/").get("labels") or {}
            kept = {key: value for key, value in {**before, **labels}.items() if value}
            client.update_node(id_of(client, name), {"labels": kept})
            shown = ", ".join(f"{key}={value}" for key, value in sorted(kept.items()))
            out().print(escape(f"{name}: {shown or 'no labels'}"))


@app.command("quarantine")
def quarantine(
    context: typer.Context,
    node: NodeName,
    device: DeviceNumber,
    reason: Reason,
    hours: Annotated[
        float | None, typer.Option("--hours", help="Duration; without it, until `release`.")
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Stop new jobs from starting on one device of a node; a running job continues."""
    wanted = {"device": device, "reason": reason, "hours": hours}
    _on_device(context, node, "quarantine-device", wanted, as_json=as_json)


@app.command("release")
def release(
    context: typer.Context, node: NodeName, device: DeviceNumber, *, as_json: AsJson = False
) -> None:
    """Return a quarantined device to service; one with a fault remains unhealthy."""
    _on_device(context, node, "release-device", {"device": device}, as_json=as_json)


@app.command("check")
def check(
    context: typer.Context, node: NodeName, device: DeviceNumber, *, as_json: AsJson = False
) -> None:
    """Start a canary job on a device that is not in service; if it passes, the device returns."""
    _on_device(context, node, "check-device", {"device": device}, as_json=as_json)


@app.command("reset-isolation")
def reset_isolation(
    context: typer.Context,
    node: NodeName,
    reason: Reason,
    *,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Release a node of isolation level none from its tenant, for use by another tenant.

    Clean the node first: a job may have left files, cron jobs or keys behind.
    """
    _require_yes(f"Is {node} clean? Jobs of other tenants will run there.", yes=yes)
    _act(context, node, "reset-isolation", reason, as_json=as_json)


@app.command("dedicate")
def dedicate(
    context: typer.Context,
    node: NodeName,
    tenants: Annotated[
        list[str] | None, typer.Argument(help="Names of tenants; if omitted, all tenants.")
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Dedicate a node to tenants; without tenants, open it to all tenants."""
    change_node(context, node, {"dedicated_to": tenants or []}, as_json=as_json)


def parse_address(address: str) -> dict[str, Any]:
    """Parse ``USER@HOST[:PORT]`` into its three parts; an IPv6 host is in brackets."""
    found = re.fullmatch(r"([^@\s]+)@(?:\[([^\]\s]+)\]|([^:@\s]+))(?::(\d{1,5}))?", address)
    if found is None or not 0 < int(found[4] or 22) < 65536:
        raise UsageError(f"{address!r} is not a valid address: use USER@HOST or USER@HOST:PORT")
    return {"user": found[1], "host": found[2] or found[3], "port": int(found[4] or 22)}


def _add_after_asking(client: Client, wanted: dict[str, Any], *, yes: bool) -> Node:
    try:
        return client.add_node(wanted)
    except ApiError as error:
        field, seen = seen_key(error)
        if not seen or field in wanted:
            raise
    is_jump = field == JUMP_KEY
    where = wanted["jump_host"] if is_jump else f"{wanted['host']}:{wanted['port']}"
    err().print(f"{where} presents the host key {seen}", markup=False)
    if not yes and not _confirmed(
        f"Is this the host key of the {'jump host' if is_jump else 'node'}?"
    ):
        raise UsageError("no node added: confirm the key, or use --fingerprint or --yes")
    return _add_after_asking(client, wanted | {field: seen}, yes=yes)


def _install_key(key: str, wanted: dict[str, Any]) -> None:
    """Add the portal's key to ``authorized_keys`` of the account, unless it is there."""
    if not _KEY.fullmatch(key):
        raise UsageError("the portal has no valid key: run `manage.py set_up` there")
    port, account = str(wanted["port"]), f"{wanted['user']}@{wanted['host']}"
    jump = str(wanted.get("jump_host", ""))
    command = ["ssh", *(["-J", jump] if jump else []), "-p", port, "--", account, _INSTALL]
    try:
        done = subprocess.run(command, input=f"{key}\n", text=True, check=False)
    except OSError as error:
        raise UsageError(f"ssh does not start: {error.strerror}") from error
    if done.returncode:
        raise UsageError(
            f"ssh to {account} ended with {done.returncode}: add the key yourself, and omit "
            "--install-key"
        )


def _confirmed(question: str) -> bool:
    return sys.stdin.isatty() and typer.confirm(question, err=True)


def _require_yes(question: str, *, yes: bool) -> None:
    if not yes and not _confirmed(question):
        raise UsageError("no change made: confirm, or use --yes")


def _act(context: typer.Context, name: str, action: str, reason: str, *, as_json: bool) -> None:
    session: Session = context.obj
    with session.client() as client:
        node = client.act_on_node(id_of(client, name), action, reason=reason)
    _print(node, as_json=as_json)


def _on_device(
    context: typer.Context, name: str, action: str, wanted: dict[str, Any], *, as_json: bool
) -> None:
    session: Session = context.obj
    with session.client() as client:
        body = client.post(f"nodes/{id_of(client, name)}/{action}/", wanted)
        node = Node.from_body(body)
    _print(node, as_json=as_json)


def change_node(
    context: typer.Context, name: str, changes: dict[str, Any], *, as_json: bool
) -> None:
    """Change fields of a node, and print it."""
    session: Session = context.obj
    with session.client() as client:
        node = client.update_node(id_of(client, name), changes)
    _print(node, as_json=as_json)


def _print(node: Node, *, as_json: bool) -> None:
    if as_json:
        print_json(dict(node.body))
    else:
        out().print(f"{escape(node.name)}: {state_text(node.state)}")


def id_of(client: Client, name: str) -> int:
    nodes = list(client.nodes())
    found = [node.id for node in nodes if node.name == name]
    found += [node.id for node in nodes if str(node.id) == name]
    if not found:
        names = ", ".join(node.name for node in nodes) or "none"
        raise UsageError(f"node {name!r} not found; known: {names}")
    return found[0]


def _name_of(host: str) -> str:
    """Return the first label of a host name; an IP address stays whole."""
    is_address = re.search(r"[\d:]$", host) is not None
    chosen = host if is_address else host.partition(".")[0]
    return re.sub(r"[^a-z0-9-]+", "-", chosen.lower())


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise UsageError(f"--label {text!r} is not of the form NAME=VALUE")
    return name, value
