"""Commands for users and tenants: accounts, members with their roles, and registry logins."""

import sys
from typing import Annotated, Any

import typer
from rich.markup import escape

from tessera.cli.exits import UsageError
from tessera.cli.output import AsJson, out, print_json, print_table
from tessera.cli.session import Session
from tessera.client import Client

users = typer.Typer(help="Users of the portal.", no_args_is_help=True, rich_markup_mode=None)
tenants = typer.Typer(
    help="Tenants, their members and registry logins.", no_args_is_help=True, rich_markup_mode=None
)
UserName = Annotated[str, typer.Argument(metavar="USER", help="Name of the user.")]
TenantName = Annotated[str, typer.Argument(metavar="TENANT", help="Name of the tenant.")]
Registry = Annotated[str, typer.Argument(help="Host of the registry; docker.io for Docker Hub.")]
Role = Annotated[str, typer.Option("--role", help="viewer, member or lead.")]
DisplayName = Annotated[str | None, typer.Option("--display-name", help="Name on pages.")]
Note = Annotated[str | None, typer.Option("--note", help="Free text.")]


def register(parent: typer.Typer) -> None:
    """Add the commands of this module."""
    parent.add_typer(users, name="user")
    parent.add_typer(tenants, name="tenant")


@users.command("list")
def list_users(context: typer.Context, *, as_json: AsJson = False) -> None:
    """List users: of your tenants, or all for cluster admins."""
    found = _all(context, "users/")
    if as_json:
        print_json(found)
        return
    print_table(
        ("ID", "USER", "NAME", "MAIL", "STATE", "ROLE"),
        (
            (
                str(row["id"]),
                escape(row["username"]),
                escape(row["name"]),
                escape(row["email"]),
                "active" if row["is_active"] else "inactive",
                "cluster admin" if row["is_cluster_admin"] else "",
            )
            for row in found
        ),
        empty="No users.",
    )


@users.command("add")
def add_user(
    context: typer.Context,
    username: UserName,
    email: Annotated[str, typer.Option("--email", help="Mail address.")] = "",
    first_name: Annotated[str, typer.Option("--first-name")] = "",
    last_name: Annotated[str, typer.Option("--last-name")] = "",
    *,
    admin: Annotated[bool, typer.Option("--admin", help="Make the user a cluster admin.")] = False,
    password_stdin: Annotated[
        bool, typer.Option("--password-stdin", help="Read the password from standard input.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Add a user. Without a password, create a link with `tessera password-link USER`."""
    wanted: dict[str, Any] = {
        "username": username,
        "email": email,
        "first_name": first_name,
        "last_name": last_name,
        "is_cluster_admin": admin,
    }
    if password_stdin:
        wanted["password"] = _secret_of_input()
    _show_user(_post(context, "users/", wanted), as_json=as_json)


@users.command("set")
def change_user(
    context: typer.Context,
    username: UserName,
    *,
    active: Annotated[
        bool | None, typer.Option("--active/--inactive", help="Whether the user may sign in.")
    ] = None,
    admin: Annotated[
        bool | None, typer.Option("--admin/--no-admin", help="Cluster admin or not.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Activate or deactivate a user; grant or revoke the role of cluster admin."""
    given = {"is_active": active, "is_cluster_admin": admin}
    changes = {key: value for key, value in given.items() if value is not None}
    session: Session = context.obj
    with session.client() as client:
        number = _id_of(client, "users/", "username", username)
        body = client.patch(f"users/{number}/", changes)
    _show_user(body, as_json=as_json)


@tenants.command("list")
def list_tenants(context: typer.Context, *, as_json: AsJson = False) -> None:
    """List your tenants, or all for cluster admins."""
    found = _all(context, "tenants/")
    if as_json:
        print_json(found)
        return
    print_table(
        ("ID", "TENANT", "DISPLAY NAME", "YOUR ROLE", "STATE"),
        (
            (
                str(row["id"]),
                escape(row["name"]),
                escape(row["display_name"]),
                row["role"] or "",
                "archived" if row["archived_at"] else "active",
            )
            for row in found
        ),
        empty="No tenants.",
    )


@tenants.command("add")
def add_tenant(
    context: typer.Context,
    name: TenantName,
    display_name: DisplayName = None,
    note: Note = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Create a tenant. Its name cannot be changed later."""
    wanted = {"name": name, "display_name": display_name or "", "note": note or ""}
    _show_tenant(_post(context, "tenants/", wanted), as_json=as_json)


@tenants.command("set")
def change_tenant(
    context: typer.Context,
    name: TenantName,
    display_name: DisplayName = None,
    note: Note = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Change the display name or the note of a tenant."""
    given = {"display_name": display_name, "note": note}
    changes = {key: value for key, value in given.items() if value is not None}
    session: Session = context.obj
    with session.client() as client:
        body = client.patch(f"tenants/{_tenant(client, name)}/", changes)
    _show_tenant(body, as_json=as_json)


@tenants.command("archive")
def archive_tenant(context: typer.Context, name: TenantName) -> None:
    """Archive a tenant: it takes no new jobs, and its history remains."""
    _act_on_tenant(context, name, "archive")


@tenants.command("restore")
def restore_tenant(context: typer.Context, name: TenantName) -> None:
    """Restore an archived tenant."""
    _act_on_tenant(context, name, "restore")


@tenants.command("members")
def list_members(context: typer.Context, name: TenantName, *, as_json: AsJson = False) -> None:
    """List the members of a tenant with their roles and device limits."""
    found = _all(context, "members/", tenant=name)
    if as_json:
        print_json(found)
        return
    print_table(
        ("ID", "USER", "ROLE", "MAX DEVICES"),
        (
            (str(row["id"]), escape(row["username"]), row["role"], str(row["max_devices"] or ""))
            for row in found
        ),
        empty="No members.",
    )


@tenants.command("add-member")
def add_member(
    context: typer.Context,
    name: TenantName,
    username: UserName,
    role: Role = "member",
    max_devices: Annotated[
        int | None,
        typer.Option("--max-devices", help="Maximum number of devices of the member's jobs."),
    ] = None,
) -> None:
    """Add a user to a tenant."""
    wanted = {"tenant": name, "username": username, "role": role, "max_devices": max_devices}
    _show_member(_post(context, "members/", wanted))


@tenants.command("set-member")
def change_member(
    context: typer.Context, name: TenantName, username: UserName, role: Role
) -> None:
    """Change the role of a member."""
    session: Session = context.obj
    with session.client() as client:
        number = _id_of(client, "members/", "username", username, tenant=name)
        body = client.patch(f"members/{number}/", {"role": role})
    _show_member(body)


@tenants.command("remove-member")
def remove_member(context: typer.Context, name: TenantName, username: UserName) -> None:
    """Remove a member from a tenant; the member's jobs are unchanged."""
    session: Session = context.obj
    with session.client() as client:
        number = _id_of(client, "members/", "username", username, tenant=name)
        client.delete(f"members/{number}/")
    out().print(f"{escape(username)}: removed from {escape(name)}")


@tenants.command("registry-logins")
def list_registry_logins(
    context: typer.Context, name: TenantName, *, as_json: AsJson = False
) -> None:
    """List the logins of a tenant at image registries, without passwords."""
    found = [row for row in _all(context, "registry-logins/") if row["tenant"] == name]
    if as_json:
        print_json(found)
        return
    print_table(
        ("ID", "REGISTRY", "USER", "CHANGED"),
        (
            (str(row["id"]), escape(row["registry"]), escape(row["username"]), row["changed_at"])
            for row in found
        ),
        empty="No registry logins.",
    )


@tenants.command("registry-login")
def set_registry_login(
    context: typer.Context,
    name: TenantName,
    registry: Registry,
    username: Annotated[str, typer.Option("--user", help="Account at the registry.")],
    *,
    password_stdin: Annotated[
        bool, typer.Option("--password-stdin", help="Read the password from standard input.")
    ] = False,
) -> None:
    """Set the login with which the nodes pull images of the tenant from a registry."""
    password = (
        _secret_of_input()
        if password_stdin
        else typer.prompt("Password or token", hide_input=True, err=True)
    )
    wanted = {"tenant": name, "registry": registry, "username": username, "password": password}
    body = _post(context, "registry-logins/", wanted)
    out().print(f"{escape(body['tenant'])}: {escape(body['registry'])} as {escape(username)}")


@tenants.command("registry-logout")
def delete_registry_login(context: typer.Context, name: TenantName, registry: Registry) -> None:
    """Delete the login of a tenant at a registry; later pulls are anonymous."""
    session: Session = context.obj
    with session.client() as client:
        found = [
            row["id"]
            for row in client.pages("registry-logins/")
            if (row["tenant"], row["registry"]) == (name, registry)
        ]
        if not found:
            raise UsageError(f"tenant {name!r} has no login at {registry}")
        client.delete(f"registry-logins/{found[0]}/")
    out().print(f"{escape(name)}: login at {escape(registry)} deleted")


def _secret_of_input() -> str:
    return sys.stdin.readline().rstrip("\r\n")


def _all(context: typer.Context, path: str, **parameters: Any) -> list[Any]:
    session: Session = context.obj
    with session.client() as client:
        return list(client.pages(path, **parameters))


def _post(context: typer.Context, path: str, wanted: dict[str, Any]) -> Any:
    session: Session = context.obj
    with session.client() as client:
        return client.post(path, wanted)


def _act_on_tenant(context: typer.Context, name: str, action: str) -> None:
    session: Session = context.obj
    with session.client() as client:
        body = client.post(f"tenants/{_tenant(client, name)}/{action}/")
    _show_tenant(body, as_json=False)


def _tenant(client: Client, name: str) -> int:
    return _id_of(client, "tenants/", "name", name)


def _id_of(client: Client, path: str, key: str, name: str, **parameters: Any) -> int:
    found = {str(row[key]): int(row["id"]) for row in client.pages(path, **parameters)}
    if name not in found:
        kind = path.rstrip("/").removesuffix("s")
        raise UsageError(f"{kind} {name!r} not found; known: {', '.join(found) or 'none'}")
    return found[name]


def _show_user(body: Any, *, as_json: bool) -> None:
    if as_json:
        print_json(body)
        return
    role = ", cluster admin" if body["is_cluster_admin"] else ""
    state = "active" if body["is_active"] else "inactive"
    out().print(f"user {body['id']} {escape(body['username'])}: {state}{role}")


def _show_tenant(body: Any, *, as_json: bool) -> None:
    if as_json:
        print_json(body)
        return
    state = "archived" if body["archived_at"] else "active"
    out().print(f"tenant {body['id']} {escape(body['name'])}: {state}")


def _show_member(body: Any) -> None:
    out().print(f"{escape(body['username'])}: {body['role']} of {escape(body['tenant'])}")
