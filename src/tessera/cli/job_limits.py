"""Commands for limits of live jobs: of the cluster, of tenants and of their members."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.markup import escape

from tessera.cli.exits import UsageError
from tessera.cli.output import AsJson, out, print_json, print_table
from tessera.cli.session import Session
from tessera.client import Client
from tessera.results import Body

DEFAULT = "default"
app = typer.Typer(
    help="Limits of live jobs (jobs that have not ended).",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Limit = Annotated[
    str,
    typer.Option(
        metavar="N|default", help="Maximum number of live jobs; default: the wider limit."
    ),
]


def register(parent: typer.Typer) -> None:
    """Add the commands of this module."""
    parent.add_typer(app, name="job-limits")


@app.command("show")
def show(
    context: typer.Context,
    tenant: Annotated[str, typer.Argument(help="Tenant; if omitted, the cluster.")] = "",
    *,
    as_json: AsJson = False,
) -> None:
    """Show limits in force with their sources, and live jobs, of all tenants or one tenant."""
    session: Session = context.obj
    with session.client() as client:
        body = (
            client.tenant_job_limits(_tenant_id(client, tenant))
            if tenant
            else client.cluster_job_limits()
        )
    if as_json:
        print_json(dict(body))
        return
    rows = [_row("all members" if tenant else "cluster", body)]
    if tenant:
        rows += [_row(str(one["username"]), one) for one in body["members"]]
    else:
        rows += [_row(str(one["tenant"]), one) for one in body["tenants"]]
    print_table(("NAME", "LIVE", "PER PERSON", "PER TENANT"), rows, empty="")


@app.command("set")
def set_limits(
    context: typer.Context,
    tenant: Annotated[str, typer.Argument(help="Tenant; if omitted, the cluster.")] = "",
    *,
    user: Annotated[str, typer.Option("--user", help="Only this member of the tenant.")] = "",
    per_person: Limit = "",
    per_tenant: Limit = "",
    as_json: AsJson = False,
) -> None:
    """Set limits of the cluster, of a tenant, or of one tenant member.

    Leads set limits per person in their tenant. Cluster admins set all limits.
    """
    if user and (per_tenant or not tenant):
        raise UsageError("--user requires a tenant and allows --per-person only")
    if not per_person and not per_tenant:
        raise UsageError("nothing to set: use --per-person or --per-tenant")
    session: Session = context.obj
    changes = {"per_person": per_person, "per_tenant": per_tenant}
    wanted = {name: _number(name, text) for name, text in changes.items() if text}
    with session.client() as client:
        body = _set(client, tenant, user, wanted)
    if as_json:
        print_json(dict(body))
        return
    limits = (f"{body[f'effective_{name}']} {name.replace('_', ' ')}" for name in wanted)
    out().print(f"{escape(user or tenant or 'cluster')}: {', '.join(limits)}")


def _set(client: Client, tenant: str, user: str, wanted: Mapping[str, int | None]) -> Body:
    if not tenant:
        return client.set_cluster_job_limits({**_own(client.cluster_job_limits()), **wanted})
    tenant_id = _tenant_id(client, tenant)
    known = client.tenant_job_limits(tenant_id)
    if not user:
        return client.set_tenant_job_limits(tenant_id, {**_own(known), **wanted})
    ids = {str(one["username"]): int(one["id"]) for one in known["members"]}
    if user not in ids:
        raise UsageError(f"{user!r} is not a member of {tenant}; members: {', '.join(ids)}")
    return client.set_member_job_limit(ids[user], wanted["per_person"])


def _own(body: Body) -> dict[str, Any]:
    return {name: body[name] for name in ("per_person", "per_tenant")}


def _row(name: str, body: Body) -> tuple[str, ...]:
    live = body.get("live")
    limits = (_limit(body, kind) for kind in ("per_person", "per_tenant"))
    return (escape(name), "" if live is None else str(live), *limits)


def _limit(body: Body, kind: str) -> str:
    """Format a limit as ``500``, or ``10000 (built-in)`` if it is not set in this scope."""
    value = body.get(f"effective_{kind}")
    if value is None:
        return ""
    is_own = body.get(kind) is not None
    return str(value) if is_own else f"{value} ({body.get(f'source_{kind}')})"


def _number(name: str, text: str) -> int | None:
    if text == DEFAULT:
        return None
    if not text.isascii() or not text.isdecimal():
        option = f"--{name.replace('_', '-')}"
        raise UsageError(f"{option} {text!r} is not a valid limit: use a number or {DEFAULT}")
    return int(text)


def _tenant_id(client: Client, name: str) -> int:
    ids = {str(one["name"]): int(one["id"]) for one in client.pages("tenants/")}
    if name not in ids:
        raise UsageError(f"tenant {name!r} not found; known: {', '.join(ids) or 'none'}")
    return ids[name]
