"""Commands for storages that jobs mount by name."""

from typing import Annotated, Any

import typer
from rich.markup import escape

from tessera.cli.exits import UsageError
from tessera.cli.output import AsJson, out, print_json, print_table
from tessera.cli.session import Session
from tessera.client import Client

app = typer.Typer(
    help="Storages that jobs mount by name.", no_args_is_help=True, rich_markup_mode=None
)
StorageName = Annotated[str, typer.Argument(help="Name of the storage.")]
Source = Annotated[str, typer.Option("--source", help="/directory of nodes, or server:/export.")]
Mount = Annotated[str, typer.Option("--mount", help="Default directory in jobs, such as /data.")]
Tenants = Annotated[
    list[str] | None, typer.Option("--tenant", help="Tenant that may use it; repeatable.")
]
Vcs = Annotated[
    list[str] | None, typer.Option("--vc", help="Virtual cluster that may use it; repeatable.")
]
Defaults = Annotated[
    list[str] | None,
    typer.Option(
        "--default-for", help="Virtual cluster whose jobs use it by default; repeatable."
    ),
]
Note = Annotated[str | None, typer.Option("--note", help="Free text.")]


def register(parent: typer.Typer) -> None:
    """Add the commands of this module."""
    parent.add_typer(app, name="storage")


@app.callback()
def group() -> None:
    """List, add, change and delete storages."""


@app.command("list")
def list_storages(context: typer.Context, *, as_json: AsJson = False) -> None:
    """List the storages that your jobs may use, with the nodes that have them."""
    session: Session = context.obj
    with session.client() as client:
        found = list(client.pages("storages/"))
    if as_json:
        print_json(found)
        return
    print_table(
        ("ID", "NAME", "SOURCE", "MOUNT", "MODE", "NODES", "FREE"),
        (
            (
                str(row["id"]),
                escape(row["name"]),
                escape(row["source"]),
                escape(row["mount"]),
                _mode(row),
                str(row["usable_nodes"]),
                f"{row['free_bytes'] / 1e9:.1f} of {row['total_bytes'] / 1e9:.1f} GB"
                if row["total_bytes"]
                else "",
            )
            for row in found
        ),
        empty="No storages that your jobs may use.",
    )


@app.command("add")
def add(
    context: typer.Context,
    name: StorageName,
    *,
    source: Source,
    mount: Mount = "",
    tenants: Tenants = None,
    vcs: Vcs = None,
    default_for: Defaults = None,
    note: Note = None,
    writable: Annotated[bool, typer.Option("--writable", help="Jobs may write to it.")] = False,
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="For checkpoints only; it has no mount point.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Add a storage. Without --tenant and --vc, all jobs may use it."""
    session: Session = context.obj
    with session.client() as client:
        body = client.post(
            "storages/",
            {
                "name": name,
                "source": source,
                "mount": mount,
                "writable": writable,
                "checkpoints": checkpoints,
                "tenants": tenants or [],
                "virtual_clusters": vcs or [],
                "default_for": default_for or [],
                "note": note or "",
            },
        )
    _print(body, as_json=as_json)


@app.command("set")
def change(
    context: typer.Context,
    name: StorageName,
    *,
    source: Annotated[str | None, typer.Option("--source", help="New source.")] = None,
    mount: Annotated[str | None, typer.Option("--mount", help="New mount point.")] = None,
    writable: Annotated[
        bool | None, typer.Option("--writable/--read-only", help="Whether jobs may write.")
    ] = None,
    tenants: Tenants = None,
    vcs: Vcs = None,
    default_for: Defaults = None,
    note: Note = None,
    everybody: Annotated[
        bool, typer.Option("--everybody", help="Remove all limits of access.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Change a storage. Mounts of running jobs do not change; queued jobs are checked again."""
    given: dict[str, Any] = {
        "source": source,
        "mount": mount,
        "writable": writable,
        "tenants": [] if everybody else tenants,
        "virtual_clusters": [] if everybody else vcs,
        "default_for": default_for,
        "note": note,
    }
    changes = {key: value for key, value in given.items() if value is not None}
    session: Session = context.obj
    with session.client() as client:
        body = client.update_storage(_id_of(client, name), changes)
    _print(body, as_json=as_json)


@app.command("remove")
def remove(context: typer.Context, name: StorageName) -> None:
    """Delete a storage that no queued or running job uses; its files remain."""
    session: Session = context.obj
    with session.client() as client:
        client.delete_storage(_id_of(client, name))
    out().print(f"{escape(name)}: deleted")


def _print(body: Any, *, as_json: bool) -> None:
    if as_json:
        print_json(body)
    else:
        out().print(f"{escape(body['name'])}: {escape(body['source'])} ({_mode(body)})")


def _mode(row: Any) -> str:
    return "checkpoints" if row["checkpoints"] else "rw" if row["writable"] else "ro"


def _id_of(client: Client, name: str) -> int:
    found = {str(row["name"]): int(row["id"]) for row in client.pages("storages/")}
    if name not in found:
        raise UsageError(f"storage {name!r} not found; known: {', '.join(found) or 'none'}")
    return found[name]
