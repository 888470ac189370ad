"""Commands for virtual clusters."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.markup import escape

from tessera.cli.exits import UsageError
from tessera.cli.output import AsJson, out, print_json, print_table
from tessera.cli.session import Session
from tessera.client import Client
from tessera.results import VirtualCluster

app = typer.Typer(help="Virtual clusters.", no_args_is_help=True, rich_markup_mode=None)


def register(parent: typer.Typer) -> None:
    """Add the commands of this module."""
    parent.add_typer(app, name="vc")


@app.callback()
def group() -> None:
    """List virtual clusters, explain shares, and set their minimum isolation level."""


@app.command("list")
def list_vcs(context: typer.Context, *, as_json: AsJson = False) -> None:
    """List virtual clusters with their guarantees.

    A guarantee counts whole cells: "2 × socket of gpu-node" means two sockets in any nodes of
    type gpu-node.
    """
    session: Session = context.obj
    with session.client() as client:
        found = list(client.virtual_clusters())
    if as_json:
        print_json([dict(vc.body) for vc in found])
        return
    print_table(
        ("ID", "NAME", "TENANT", "POLICY", "GUARANTEE"),
        (
            (
                str(vc.id),
                escape(vc.name),
                escape(vc.tenant),
                escape(vc.policy),
                escape(_guarantee(vc)),
            )
            for vc in found
        ),
        empty="No virtual clusters that you have access to.",
    )


@app.command("min-isolation")
def set_least_isolation(
    context: typer.Context,
    level: Annotated[str, typer.Argument(help="none, namespace, user or container.")],
    name: Annotated[
        str, typer.Argument(help="Virtual cluster; if omitted, the whole cluster.")
    ] = "",
) -> None:
    """Set the minimum isolation level of the nodes on which jobs run."""
    session: Session = context.obj
    with session.client() as client:
        vc_id = _id_of(client, name) if name else None
        body = client.set_least_isolation(level, virtual_cluster_id=vc_id)
    out().print(f"{escape(name) or 'cluster'}: {body['least_isolation']}")


@app.command("share")
def explain_share(
    context: typer.Context,
    span: Annotated[str, typer.Option(help="now, 1h, 1d or 7d.")] = "now",
    *,
    as_json: AsJson = False,
) -> None:
    """Explain how many devices your virtual clusters borrow, and what limits them.

    FAIR is the fair share of the tenant among the devices that all tenants borrow or leave idle.
    """
    session: Session = context.obj
    with session.client() as client:
        body = client.get("shares/", span=span)
    if as_json:
        print_json(body)
        return
    fair = {tenant["name"]: tenant["fair"] for tenant in body["tenants"]}
    print_table(
        ("NAME", "TENANT", "GUARANTEED", "USED", "LENT", "BORROWED", "FAIR", "WAITING", "LIMIT"),
        (
            (
                escape(vc["name"]),
                escape(vc["tenant"]),
                *(f"{vc[name]:g}" for name in ("guaranteed", "used", "lent", "borrowed")),
                f"{fair[vc['tenant']]:g}",
                f"{sum(vc['waiting'].values()):g}",
                vc["limit"] or "",
            )
            for vc in body["virtual_clusters"]
        ),
        empty="No shares to explain in this span.",
    )
    failed = [check["name"] for check in body["checks"] if not check["holds"]]
    if failed:
        out().print(f"Sums that do not agree: {', '.join(failed)}")


def _id_of(client: Client, name: str) -> int:
    found = {vc.name: vc.id for vc in client.virtual_clusters()}
    if name not in found:
        raise UsageError(f"virtual cluster {name!r} not found; known: {', '.join(found)}")
    return found[name]


def _guarantee(vc: VirtualCluster) -> str:
    cells = (f"{cell.get('count')} × {_cell(cell)}" for cell in vc.cells)
    pins = (f"{pin.get('name')} (pinned, {pin.get('address')})" for pin in vc.pinned)
    return ", ".join((*cells, *pins))


def _cell(cell: Mapping[str, Any]) -> str:
    """Format a cell as ``socket of cpu-a-node``; the top cell of a chain needs no ``of``."""
    level, chain = cell.get("level"), cell.get("chain")
    return str(level) if level == chain else f"{level} of {chain}"
