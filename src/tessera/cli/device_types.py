"""Commands for device types and their aliases."""

from typing import Annotated

import typer
from rich.markup import escape

from tessera.cli.exits import UsageError
from tessera.cli.output import AsJson, out, print_json, print_table
from tessera.cli.session import Session

app = typer.Typer(
    help="Device types and their aliases.", no_args_is_help=True, rich_markup_mode=None
)
Alias = Annotated[str, typer.Argument(help="Name in documents of jobs, such as A100.")]
Type = Annotated[str, typer.Argument(help="Device type of the cluster.")]


def register(parent: typer.Typer) -> None:
    """Add the commands of this module."""
    parent.add_typer(app, name="device-type")


@app.callback()
def group() -> None:
    """List device types, and add or delete their aliases."""


@app.command("list")
def list_types(context: typer.Context, *, as_json: AsJson = False) -> None:
    """List the device types with their devices and names."""
    session: Session = context.obj
    with session.client() as client:
        found = list(client.pages("device-types/"))
    if as_json:
        print_json(found)
        return
    print_table(
        ("TYPE", "DEVICES", "NODES", "ALIASES", "AUTOMATIC NAMES"),
        (
            (
                escape(row["device_type"]),
                str(row["devices"]),
                str(row["nodes"]),
                escape(", ".join(one["alias"] for one in row["aliases"])),
                escape(", ".join(row["automatic"])),
            )
            for row in found
        ),
        empty="No device types yet. Add a node.",
    )


@app.command("alias")
def add_alias(
    context: typer.Context, device_type: Type, alias: Alias, *, as_json: AsJson = False
) -> None:
    """Add an alias; an alias of several types accepts any of them."""
    session: Session = context.obj
    with session.client() as client:
        body = client.post("device-aliases/", {"alias": alias, "device_type": device_type})
    if as_json:
        print_json(body)
    else:
        out().print(f"{escape(body['alias'])} is an alias of {escape(body['device_type'])}")


@app.command("unalias")
def delete_alias(context: typer.Context, device_type: Type, alias: Alias) -> None:
    """Delete an alias; submitted jobs are unchanged."""
    session: Session = context.obj
    with session.client() as client:
        found = next(
            (
                row
                for row in client.pages("device-aliases/")
                if (row["alias"], row["device_type"]) == (alias.lower(), device_type)
            ),
            None,
        )
        if found is None:
            raise UsageError(f"{alias} is not an alias of {device_type}.")
        client.delete(f"device-aliases/{found['id']}/")
    out().print(f"{escape(alias)} is no longer an alias of {escape(device_type)}")
