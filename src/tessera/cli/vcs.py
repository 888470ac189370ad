"""Commands about virtual clusters."""

import typer
from rich.markup import escape

from tessera.cli.output import AsJson, print_json, print_table
from tessera.cli.session import Session
from tessera.results import VirtualCluster

app = typer.Typer(help="Virtual clusters.", no_args_is_help=True, rich_markup_mode=None)


def register(parent: typer.Typer) -> None:
    """Add the commands of this module."""
    parent.add_typer(app, name="vc")


@app.callback()
def group() -> None:
    """Look at virtual clusters."""


@app.command("list")
def list_vcs(context: typer.Context, *, as_json: AsJson = False) -> None:
    """List the virtual clusters one may see, with what each is guaranteed."""
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
        empty="No virtual clusters that you may see.",
    )


def _guarantee(vc: VirtualCluster) -> str:
    cells = (
        f"{cell.get('count')} × {cell.get('level')} of {cell.get('chain')}" for cell in vc.cells
    )
    pins = (f"{pin.get('name')} (pinned, {pin.get('address')})" for pin in vc.pinned)
    return ", ".join((*cells, *pins))
