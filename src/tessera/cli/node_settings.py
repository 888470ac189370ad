"""Commands for the settings of a node, its helper, and the links between its devices."""

import re
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import typer
from rich.markup import escape

from tessera.cli.exits import UsageError
from tessera.cli.nodes import NodeName, app, change_node
from tessera.cli.output import AsJson, out, print_json, print_table
from tessera.cli.session import Session

_UNITS = {"": 1, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = re.compile(r"(\d{1,16}(?:\.\d{1,3})?)(MiB|GiB|TiB)?")
ACCOUNT = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,31}")


def register(parent: typer.Typer) -> None:
    """Add the commands for nodes, with those of this module."""
    parent.add_typer(app, name="node")


@app.command("visible-paths")
def visible_paths(
    context: typer.Context,
    node: NodeName,
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATH[:rw|:checkpoints][@TENANT,...]", help="Paths; if omitted, none."
        ),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Set the paths of a node that jobs see besides their own directories.

    Jobs may write to PATH:rw. They do not see PATH:checkpoints, but may name it as checkpoint_dir.
    """
    wanted = [parse_visible_path(text) for text in paths or ()]
    change_node(context, node, {"visible_paths": wanted}, as_json=as_json)


@app.command("job-network")
def job_network(
    context: typer.Context,
    node: NodeName,
    setting: Annotated[
        str,
        typer.Argument(
            metavar="auto|isolated|shared|default",
            help="default: use the setting in the node's own file.",
        ),
    ],
    *,
    as_json: AsJson = False,
) -> None:
    """Set how a node chooses the network of jobs of one instance without an image."""
    wanted = "" if setting == "default" else setting
    change_node(context, node, {"job_network": wanted}, as_json=as_json)


@app.command("data-interface")
def data_interface(
    context: typer.Context,
    node: NodeName,
    interface: Annotated[
        str,
        typer.Argument(
            metavar="NAME|default",
            help="default: the fastest interface that the nodes of a gang share.",
        ),
    ],
    *,
    as_json: AsJson = False,
) -> None:
    """Set the network interface of a node for traffic between the members of a gang."""
    wanted = "" if interface == "default" else interface
    change_node(context, node, {"data_interface": wanted}, as_json=as_json)


@app.command("device-share")
def device_share(
    context: typer.Context,
    node: NodeName,
    cpus: Annotated[
        str, typer.Option("--cpus", metavar="N|default", help="CPUs of each device.")
    ] = "",
    memory: Annotated[
        str, typer.Option("--memory", metavar="SIZE|default", help="Memory of each device: 60GiB.")
    ] = "",
    *,
    as_json: AsJson = False,
) -> None:
    """Set the share of each device; jobs without devices use the remainder.

    default: an equal part of the node.
    """
    wanted: dict[str, Any] = {}
    if cpus:
        wanted["device_cpus"] = None if cpus == "default" else _number(cpus)
    if memory:
        wanted["device_memory_bytes"] = None if memory == "default" else parse_size(memory)
    if not wanted:
        raise UsageError("give --cpus or --memory")
    change_node(context, node, wanted, as_json=as_json)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{text!r} is not a number of CPUs: use 4 or 0.5") from None


def parse_size(text: str) -> int:
    """Parse a size such as ``60GiB`` or a number of bytes."""
    found = _SIZE.fullmatch(text)
    if found is None:
        raise UsageError(f"{text!r} is not a size: use 60GiB, 512MiB or a number of bytes")
    return int(float(found[1]) * _UNITS[found[2] or ""])


@app.command("helper")
def helper(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="File to write.")],
    account: Annotated[
        str, typer.Option("--account", help="Account on the node that Tessera uses.")
    ] = "tessera",
) -> None:
    """Write the helper for isolation level user on nodes whose runner is not root.

    Prints the steps to install it on a node.
    """
    from tessera.bundle import build_helper  # noqa: PLC0415 - only this command needs them
    from tessera.node import helped  # noqa: PLC0415

    if not ACCOUNT.fullmatch(account):
        raise UsageError(f"{account!r} is not a valid account: use letters, digits, - and _")
    built = build_helper()
    path.write_bytes(built.data)
    folder = str(PurePosixPath(helped.PROGRAM).parent)
    print(f"{path}: SHA-256 {built.sha256}")
    print("Copy the helper to the node, then run there as root:")
    print(f"  install -d -o root -g root -m 0755 {folder}")
    print(f"  install -o root -g root -m 0755 {path.name} {helped.PROGRAM}")
    print("  visudo -f /etc/sudoers.d/tessera   # add this line:")
    print(f"{account} ALL=(root) NOPASSWD: {' '.join(helped.COMMAND)}")
    print("Then probe the node. Its page shows when an upgrade of Tessera needs a new helper.")


def parse_visible_path(text: str) -> dict[str, Any]:
    """Parse ``PATH[:rw|:checkpoints][@TENANT,...]`` into the fields of a visible path."""
    place, _, names = text.partition("@")
    path, separator, mode = place.partition(":")
    if separator and mode not in ("ro", "rw", "checkpoints"):
        raise UsageError(
            f"{text!r} is not a valid path: use PATH, PATH:rw, PATH:checkpoints or PATH:rw@TENANT"
        )
    tenants = [name for name in names.split(",") if name]
    kinds = {"writable": mode == "rw", "checkpoints": mode == "checkpoints"}
    return {"path": path, **kinds, "tenants": tenants}


@app.command("probe-links")
def probe_links(
    context: typer.Context,
    device_type: Annotated[str, typer.Argument(metavar="TYPE", help="Device type.")],
    virtual_cluster: Annotated[
        str, typer.Option("--virtual-cluster", "-v", help="Virtual cluster of the probe job.")
    ],
    nodes: Annotated[
        int, typer.Option("--nodes", help="2 also measures links between nodes.", min=1, max=2)
    ] = 1,
    *,
    as_json: AsJson = False,
) -> None:
    """Submit a job on whole nodes that measures the links between their devices."""
    wanted = {"device_type": device_type, "virtual_cluster": virtual_cluster, "nodes": nodes}
    session: Session = context.obj
    with session.client() as client:
        found = client.post("link-tables/", wanted)
    if as_json:
        print_json(found)
    else:
        out().print(f"job {found['job']} measures the links; see tessera node link-tables")


@app.command("link-tables")
def link_tables(context: typer.Context, *, as_json: AsJson = False) -> None:
    """Show the measured links between devices, by type and class."""
    session: Session = context.obj
    with session.client() as client:
        found = client.get("link-tables/")
    if as_json:
        print_json(found)
        return
    print_table(
        ("TYPE", "LINK", "TRANSPORT", "LATENCY", "BANDWIDTH", "PAIRS", "MEASURED"),
        (
            (
                escape(str(row["device_type"])),
                escape(str(row["link_class"])),
                str(row["transport"]),
                f"{1e6 * row['latency']:,.0f} us",
                f"{row['bandwidth'] / 1e9:,.2f} GB/s",
                str(row["pairs"]),
                str(row["measured_at"])[:16] + ("" if row["is_used"] else " (too old)"),
            )
            for row in found["results"]
        ),
        empty="No link tables. Measure them: tessera node probe-links TYPE -v VIRTUAL_CLUSTER",
    )
