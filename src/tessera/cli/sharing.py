"""The group ``sharing``: totals, the switches of device sharing, and who shares with a job."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer
from rich.markup import escape

from tessera.cli.job_details import harmless
from tessera.cli.nodes import NodeName, id_of
from tessera.cli.output import AsJson, out, print_json, print_table
from tessera.cli.session import Session

app = typer.Typer(
    help="Device sharing: totals, switches, and who shares with a job.", rich_markup_mode=None
)
_ALLOWED: Final = "none, same-tenant or any"
JobId = Annotated[int, typer.Argument(help="Job ID.", min=1)]


def register(parent: typer.Typer) -> None:
    """Add the commands of this module."""
    parent.add_typer(app, name="sharing")


@app.callback(invoke_without_command=True)
def group(context: typer.Context) -> None:
    """Show the totals of device sharing, or run a command of the group."""
    if context.invoked_subcommand is None:
        status(context, as_json=False)


@app.command()
def status(context: typer.Context, *, as_json: AsJson = False) -> None:
    """Show whether the cluster shares devices, its guests, and the loss of holders."""
    session: Session = context.obj
    with session.client() as client:
        found = client.get("cluster/sharing/")
    if as_json:
        print_json(found)
        return
    guests: Mapping[str, int] = found["guests"]
    loss, limit = _percent(found["loss_p95"]), _percent(found["limit"])
    for label, value in (
        ("device sharing", "on" if found["sharing"] else "off"),
        ("devices", f"{found['devices']} with guests"),
        ("guests", _numbers(guests)),
        ("pairs", _numbers(found["peers"])),
        ("suspended", _numbers(found["suspended"])),
        ("loss", f"{loss} (p95 of holders; limit {limit})" if found["loss_p95"] else "-"),
        ("pair loss", f"{_percent(found['pair_loss_p95'])} (p95 of holders in a pair)"),
        ("over limit", f"{found['over_limit']} holders in the last 24 h"),
        ("delay today", f"{found['delay_seconds']:.0f} s"),
    ):
        out().print(f"{label:<16}{value}", markup=False)


@app.command("on")
def turn_on(context: typer.Context, *, as_json: AsJson = False) -> None:
    """Turn device sharing on for the cluster; jobs still decide about their own devices."""
    _switch(context, enabled=True, as_json=as_json)


@app.command("off")
def turn_off(context: typer.Context, *, as_json: AsJson = False) -> None:
    """Turn device sharing off for the cluster: all guests leave within 5 s."""
    _switch(context, enabled=False, as_json=as_json)


@app.command("job")
def job(
    context: typer.Context,
    job_id: JobId,
    *,
    alone: Annotated[
        bool, typer.Option("--alone", help="Stop sharing the devices of this job.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show who shares the devices of a job, and its loss; with --alone, stop that."""
    session: Session = context.obj
    with session.client() as client:
        found = (
            client.post(f"jobs/{job_id}/sharing/stop/")
            if alone
            else client.get(f"jobs/{job_id}/sharing/")
        )
    if as_json:
        print_json(found)
        return
    print_job(found)


@app.command("node")
def node(context: typer.Context, name: NodeName, *, as_json: AsJson = False) -> None:
    """Show the sharing modes, limits and guests of the devices of a node."""
    session: Session = context.obj
    with session.client() as client:
        found = client.get(f"nodes/{id_of(client, name)}/sharing/")
    if as_json:
        print_json(found)
    else:
        _print_node(found)


@app.command("limit")
def limit(
    context: typer.Context,
    name: NodeName,
    guests: Annotated[str, typer.Argument(help=f"Guests that are allowed: {_ALLOWED}.")],
    device: Annotated[
        int | None, typer.Option("--device", min=0, help="Only this device of the node.")
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Limit the guests on a node or a device; others leave within 5 s."""
    session: Session = context.obj
    with session.client() as client:
        wanted = {"guests": guests, "device": device}
        found = client.post(f"nodes/{id_of(client, name)}/sharing/limit/", wanted)
    if as_json:
        print_json(found)
    else:
        _print_node(found)


def print_job(found: Mapping[str, Any]) -> None:
    """Print the other jobs on the devices of a job, and which of them is active."""
    allowed = f"guests {found['guests']}, " if found["guests"] else ""
    limit = f"limit {max((one['limit'] for one in found['devices']), default=0.0):.0%}"
    if not found["devices"]:
        limit = f"limit {found['slowdown_percent']}%"
    state = "stopped" if found["stopped_at"] else "on" if found["enabled"] else "off"
    role = found["role"] or "alone"
    out().print(f"job {found['job_id']}: {role}; {allowed}{limit}; sharing {state}", markup=False)
    for device in found["devices"]:
        if device["turn_seconds"]:
            mine = _turn(device) or "works now"
            if device["tier"]:
                mine += f" since {device['suspended_since']}"
            out().print(
                f"{device['node']}/{device['index']}: turns of {device['turn_seconds']:.0f} s; "
                f"this job {mine}; suspended {found['suspensions']} times, "
                f"{found['suspended_seconds']:.0f} s in all",
                markup=False,
            )
    print_table(
        ("DEVICE", "SLOT", "ROLE", "JOB", "STATE", "OPEN", "LOSS", "95 %", "LIMITS"),
        (
            (
                escape(f"{device['node']}/{device['index']}"),
                str(other["slot"]),
                str(other["role"]),
                _job_name(other),
                _turn(other) or _activity(device, other),
                "-" if device["turn_seconds"] else _percent(device["open"]),
                _percent(device["loss"]),
                f"{_percent(device['loss_low'])} to {_percent(device['loss_high'])}",
                _limits(device),
            )
            for device in found["devices"]
            for other in device["others"]
        ),
        empty="No other jobs on its devices.",
        numbers=("OPEN", "LOSS"),
    )


def _print_node(found: Mapping[str, Any]) -> None:
    state = "on" if found["enabled"] else "off"
    out().print(
        f"device sharing of the cluster: {state}; guests allowed on this node: "
        f"{found['guests_allowed']}",
        markup=False,
    )
    print_table(
        ("DEVICE", "TYPE", "ALLOWED", "MODES", "GUESTS"),
        (
            (
                str(device["index"]),
                escape(str(device["device_type"])),
                str(device["guests_allowed"]),
                ", ".join(str(mode["mode"]) for mode in device["modes"]) or "none",
                ", ".join(f"{_job_name(guest)} ({_state(guest)})" for guest in device["guests"]),
            )
            for device in found["devices"]
        ),
        empty="No devices.",
    )


def _switch(context: typer.Context, *, enabled: bool, as_json: bool) -> None:
    session: Session = context.obj
    with session.client() as client:
        found = client.patch("cluster/rules/", {"sharing": enabled})
    if as_json:
        print_json(found)
    else:
        out().print(f"Device sharing is {'on' if found['sharing'] else 'off'}.")


def _job_name(other: Mapping[str, Any]) -> str:
    if other["job_id"] is None:
        return escape(str(other.get("tenant") or "another tenant"))
    return escape(harmless(f"{other['job_id']} {other['name']}"))


def _numbers(states: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {state}" for state, number in sorted(states.items())) or "none"


def _turn(found: Mapping[str, Any]) -> str:
    """Return how a job is suspended; empty while it is active."""
    return f"suspended ({found['tier']})" if found["tier"] else ""


def _activity(device: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    if other["leaving"] or other["frozen"]:
        return "leaving" if other["leaving"] else "frozen"
    return "works" if device["at"] else "unknown"


def _state(guest: Mapping[str, Any]) -> str:
    if guest["tier"]:
        return f"turns of {guest['turn_seconds']:.0f} s, suspended ({guest['tier']})"
    share = "" if guest["open"] is None else f"open {_percent(guest['open'])}, "
    return f"{share}{guest['state'] or 'unknown'}"


def _limits(device: Mapping[str, Any]) -> str:
    return f"{device['mode']}: memory {device['memory_limit']}, compute {device['compute_limit']}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
