"""A page of all components with sample values; only in debug mode."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django import forms
from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render

from portal.web.components.bars import VcBarUse
from portal.web.components.history import Held, Mark, StateSpan, history
from portal.web.components.mapvalues import DeviceNow, MapCell, MapNode, MapOccupant
from portal.web.components.placement import placement
from portal.web.components.states import JOB_STATES, NODE_STATES
from portal.web.components.stats import Stat
from portal.web.devicemap import device_map, node_tiles
from portal.web.frame import Frame, set_frame
from scheduling.rounds.queries import RoundTick
from tenants.clock import estimated_now

TENANTS: Final = ("vision", "language")
SECONDS: Final = (0.4, 0.3, 0.35, 0.5, 0.3, 0.35, 0.35, 0.45, 0.3, 0.6, 0.35, 0.42)
CATEGORIES: Final = ("azure", "ochre", "teal", "orchid", "olive", "slate", "clay", "indigo")
COLOURS: Final = ("state", "utilisation", "tenant", "job")


class SampleForm(forms.Form):
    """Every kind of field, some of them wrong."""

    name = forms.CharField(label="Name", initial="vit-large-ft-2")
    memory = forms.CharField(label="Memory")
    cluster = forms.ChoiceField(label="Virtual cluster", choices=[("vision-a", "vision-a")])
    command = forms.CharField(label="Command", widget=forms.Textarea(attrs={"rows": 3}))
    held = forms.BooleanField(label="Hold it until I release it", required=False)

    def clean_memory(self) -> str:
        """Raise an error for display."""
        raise forms.ValidationError("An A100 node has 2,000 GB; 2,400 never fit. Use 1,900 GB.")


def components(request: HttpRequest) -> HttpResponse:
    """Show every component once; only in debug mode."""
    if not settings.DEBUG:
        raise Http404
    set_frame(request, _frame())
    return render(request, "components/gallery.html", _context(request))


def _context(request: HttpRequest) -> dict[str, Any]:
    now = estimated_now()
    form = SampleForm(
        {"name": "vit-large-ft-2", "memory": "2400 GB", "cluster": "vision-a", "command": "sleep"}
    )
    form.is_valid()
    nodes = sample_nodes()
    colour = request.GET.get("colour", "tenant")
    return {
        "job_states": JOB_STATES,
        "node_states": NODE_STATES,
        "stats": _stats(),
        "uses": _uses(),
        "map": device_map(
            nodes, tenants=TENANTS, colour=colour if colour in COLOURS else "tenant"
        ),
        "many": device_map(_many(60), tenants=TENANTS, colour="utilisation"),
        "view": request.GET.get("view", "map"),
        "colours": COLOURS,
        "strips": [(node, node_tiles(node, tenants=TENANTS)) for node in nodes[:4]],
        "history": _history(now),
        "placements": [
            placement(node="a100-01", tree=_node(8), ranks={n: str(n) for n in range(8)}),
            placement(node="rtx-02", tree=_node(4), ranks={0: "0", 1: "1"}),
        ],
        "form": form,
        "categories": list(enumerate(CATEGORIES, start=1)),
        "rows": _rows(),
        "chart": _chart(now),
        "now": now - timedelta(seconds=12),
    }


def _frame() -> Frame:
    ticks = (
        RoundTick(number=18_193 + place, seconds=seconds, policy="fifo")
        for place, seconds in enumerate(SECONDS)
    )
    return Frame(
        scope="vision",
        counts={"jobs": 18, "virtual-clusters": 2},
        flags={"nodes": 2},
        rounds=tuple(ticks),
        round_age_seconds=4,
    )


def _stats() -> tuple[Stat, ...]:
    trend = [13, 9, 12, 9, 10, 11, 5, 5, 3, 1, 1, 4, 5, 6, 10, 14, None, 20, 20, 21, 21, 25]
    return (
        Stat(label="Devices in use", value="59", unit="of 78 healthy", context="80 in all, 2 out"),
        Stat(label="Utilisation", value="81", unit="%", context="83 % a day ago", trend=trend),
        Stat(label="Goodput per device in use", value="0.74", context="0.71 a day ago"),
        Stat(label="Jobs", value="11", unit="running", context="5 queued, 1 starting, 1 suspect"),
        Stat(label="Queue wait, last 24 h", context="no job has started yet"),
    )


def _uses() -> tuple[VcBarUse, ...]:
    return (
        VcBarUse(
            name="vision", guarantee=40, used=29, lent=4, borrowed=2, queued=16, policy="fifo"
        ),
        VcBarUse(
            name="language",
            guarantee=28,
            used=22,
            unhealthy=2,
            borrowed=6,
            queued=22,
            category=2,
            policy="fifo",
        ),
    )


def _node(devices: int) -> MapCell:
    def pair(first: int, level: str) -> MapCell:
        leaves = tuple(MapCell(level="device", device=first + n) for n in (0, 1))
        return MapCell(level=level, children=leaves)

    if devices == 4:
        return MapCell(level="node", children=(pair(0, "socket"), pair(2, "socket")))
    sockets = tuple(
        MapCell(level="socket", children=(pair(first, "pcie"), pair(first + 2, "pcie")))
        for first in (0, 4)
    )
    return MapCell(level="node", children=sockets)


def _job(number: int, name: str, tenant: str = "vision", **more: Any) -> MapOccupant:
    return MapOccupant(
        allocation=str(number),
        tenant=tenant,
        job_id=number,
        name=name,
        user="alice" if tenant == "vision" else "bob",
        virtual_cluster=tenant,
        url="#",
        **more,
    )


def _fill(*runs: tuple[int, MapOccupant | str | None]) -> dict[int, DeviceNow]:
    devices: dict[int, DeviceNow] = {}
    for length, what in runs:
        for _ in range(length):
            index = len(devices)
            if isinstance(what, MapOccupant):
                share = (int(what.allocation) * 37 + 13) % 100 / 100
                devices[index] = DeviceNow(occupant=what, utilisation=share)
            elif what in {"unhealthy", "cordoned"}:
                devices[index] = DeviceNow(
                    condition="unhealthy" if what == "unhealthy" else "cordoned"
                )
            else:
                devices[index] = DeviceNow()
    return devices


def sample_nodes() -> list[MapNode]:
    """Build the cluster of the gallery: 12 nodes, 80 devices."""
    large = [
        MapNode(name=name, rack=rack, tree=_node(8), devices=devices, url="#")
        for rack, nodes in (("Rack 1", _rack1()), ("Rack 2", _rack2()))
        for name, devices in nodes
    ]
    small = [
        MapNode(name=name, rack="Rack 3", tree=_node(4), devices=devices, state=state, url="#")
        for name, devices, state in _rack3()
    ]
    return [*large, *small]


def _rack1() -> tuple[tuple[str, Mapping[int, DeviceNow]], ...]:
    return (
        ("a100-01", _fill((8, _job(2431, "vit-large-ft")))),
        (
            "a100-02",
            _fill(
                (4, _job(2438, "detector-sweep-03")),
                (2, _job(2439, "sweep-04")),
                (1, _job(2440, "sweep-05")),
                (1, None),
            ),
        ),
        ("a100-03", _fill((8, _job(2426, "segmentation-hr", state="preempting")))),
        (
            "a100-04",
            _fill((4, _job(2444, "tokenizer-ablation", "language", borrowed=True)), (4, None)),
        ),
    )


def _rack2() -> tuple[tuple[str, Mapping[int, DeviceNow]], ...]:
    pretrain = _job(2417, "gpt-1.3b-pretrain", "language")
    return (
        ("a100-05", _fill((8, pretrain))),
        ("a100-06", _fill((8, pretrain))),
        (
            "a100-07",
            _fill(
                (4, _job(2433, "bert-eval", "language")),
                (2, _job(2441, "probe", "language", state="starting")),
                (2, "unhealthy"),
            ),
        ),
        ("a100-08", _fill((2, _job(2436, "distill-small", borrowed=True)), (2, None), (4, None))),
    )


def _rack3() -> tuple[tuple[str, Mapping[int, DeviceNow], str], ...]:
    stranger = MapOccupant(allocation="7", tenant="language")
    return (
        ("rtx-01", _fill((4, _job(2442, "augment-cache"))), "ready"),
        ("rtx-02", _fill((2, _job(2443, "augment-pairs", state="suspect")), (2, None)), "suspect"),
        ("rtx-03", _fill((2, stranger), (2, None)), "draining"),
        ("rtx-04", _fill((1, None), (2, _job(2445, "eval")), (1, None)), "ready"),
    )


def _many(count: int) -> list[MapNode]:
    return [
        MapNode(
            name=f"gpu-{number:03}",
            rack=f"Rack {number // 20 + 1}",
            tree=_node(8),
            devices=_fill(
                (4, _job(3000 + number, "job")), (2, _job(4000 + number, "other")), (2, None)
            ),
        )
        for number in range(count)
    ]


def _history(now: datetime) -> Any:
    start = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=6)

    def at(minutes: int) -> datetime:
        return start + timedelta(minutes=minutes)

    spells = (
        StateSpan(state="queued", start=at(0), end=at(4)),
        StateSpan(state="starting", start=at(4), end=at(6), attempt=1),
        StateSpan(state="running", start=at(6), end=at(50), attempt=1),
        StateSpan(state="suspect", start=at(50), end=at(53), attempt=1),
        StateSpan(state="queued", start=at(53), end=at(57)),
        StateSpan(state="starting", start=at(57), end=at(58), attempt=2),
        StateSpan(state="running", start=at(58), end=at(365), attempt=2),
    )
    held = (
        Held(devices=8, start=at(6), end=at(53)),
        Held(devices=8, start=at(57), end=at(100)),
        Held(devices=16, start=at(100), end=at(236)),
        Held(devices=8, start=at(236), end=at(365)),
    )
    marks = (
        Mark(at=at(50), what="node lost", cause="a100-07"),
        Mark(at=at(236), what="16 → 8", cause="prod job 2426"),
    )
    checkpoints = tuple(at(minute) for minute in range(30, 360, 24))
    return history(spells, held, marks=marks, checkpoints=checkpoints)


def _rows() -> list[dict[str, Any]]:
    names = (
        ("running", "vit-large-ft", 2431, 0.68),
        ("running", "detector-sweep-03", 2438, 0.87),
        ("starting", "augment-cache", 2442, 0.0),
        ("suspect", "augment-pairs", 2443, 0.64),
        ("stopped", "a" * 63, 2435, None),
        ("failed", "detector-sweep-02", 2437, None),
    )
    return [
        {"state": state, "name": name, "id": number, "share": share}
        for state, name, number, share in names
    ]


def _chart(now: datetime) -> dict[str, Any]:
    times = [(now - timedelta(minutes=5 * step)).isoformat() for step in range(60, 0, -1)]

    def wave(base: int, step: int) -> list[float | None]:
        return [None if 20 < n < 24 else base + (n * step) % 17 for n in range(60)]

    lines = (("throughput", wave(1300, 5), "c1"), ("goodput", wave(1100, 7), "text"))
    traces = [
        {"x": times, "y": values, "name": name, "type": "scatter", "colour": colour}
        for name, values, colour in lines
    ]
    return {"data": traces, "layout": {}}
