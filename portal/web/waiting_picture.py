"""Picture of a waiting job: the nodes that could hold it, who uses them, and sizes to choose."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any, Final

from django.utils.translation import gettext as _

from portal.addresses import job_url
from portal.web.cluster_drawing import cell
from portal.web.components import words
from portal.web.components.mapvalues import MapCell
from scheduling.clusters.queries.cluster import DeviceView, NodeView
from scheduling.core.jobspec.amending import AmendError, amended
from scheduling.core.lifecycle import JobState
from scheduling.jobs.queries.jobs import JobRow
from scheduling.jobs.queries.why import Why

MOST_NODES: Final = 6
LEFT, WIDTH, TOP, ROW = 120.0, 640.0, 24, 56
TIP_WIDTH: Final = 360.0
VIEW_WIDTH: Final = 1000.0
PAD: Final = 6.0
LETTER: Final = 6.8
"""Width of a letter in the picture; Chinese ones take two."""

_WIDE: Final = 0x2E80
_NO_LOSS: Final = frozenset({"level", "pinned_cell", "virtual_cluster", "gate"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Neighbouring devices of a node in the hands of one job, or idle; positions in the picture.

    Attributes:
        look: ``own`` (a job that the viewer may see), ``other``, ``free`` or ``bad``.
        short: the longest name that fits into the block; ``until``: its end, if that fits.
        devices: number of devices; ``wanted`` of them are in the target cell.
        end: latest end by the time limit; None if unknown or without limit.
    """

    look: str
    name: str
    short: str
    until: str
    url: str
    devices: int
    wanted: int
    end: datetime | None
    ends: str
    frees: str
    x: float
    width: float
    tip_x: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateNode:
    """A node with the cell that could hold one instance; ``missing`` devices are not free."""

    name: str
    y: int
    blocks: tuple[Block, ...]
    frame_x: float
    frame_width: float
    missing: int
    complete: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingPicture:
    """Candidate nodes, nearest to complete first; at most ``MOST_NODES`` of ``total``.

    Attributes:
        wanted: devices of one instance.
        instances: instances of the role; ``ready`` of them fit on free devices now.
    """

    wanted: int
    instances: int
    ready: int
    level: str
    nodes: tuple[CandidateNode, ...]
    total: int
    height: int

    @property
    def summary(self) -> str:
        """Return the picture as a sentence."""
        if not self.nodes:
            return _("No node of a fitting type has %(devices)s.") % {
                "devices": words.plural(self.wanted, "device", "devices")
            }
        best = self.nodes[0]
        devices = words.plural(self.wanted, "device", "devices")
        if self.ready >= self.instances:
            return _(
                "%(node)s has %(devices)s free together; another limit blocks the job (see above)."
            ) % {"node": best.name, "devices": devices}
        ready = _("%(ready)s of %(instances)s fit on free devices now.") % {
            "ready": words.count(self.ready),
            "instances": words.plural(self.instances, "instance", "instances"),
        }
        parts = [ready] if self.instances > 1 else []
        nearest = next((node for node in self.nodes if node.missing), None)
        if nearest is not None:
            text = _("Best fit: %(node)s, where %(missing)s of %(devices)s are not free.") % {
                "node": nearest.name,
                "missing": words.count(nearest.missing),
                "devices": devices,
            }
            parts.append(text)
        return " ".join(parts)

    @property
    def target(self) -> str:
        """Return the label of the target cells."""
        return _("target cell: %(devices)s together") % {
            "devices": words.plural(self.wanted, "device", "devices")
        }


def wanted_role(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the role with the largest instances."""
    roles: Iterable[Mapping[str, Any]] = spec["roles"].values()
    return max(roles, key=lambda role: int(role.get("devices") or 0))


def candidate_nodes(nodes: Sequence[NodeView], spec: Mapping[str, Any]) -> list[NodeView]:
    """Return the nodes that take new work and whose devices fit one instance, best first."""
    role = wanted_role(spec)
    types, wanted = role.get("device_types") or (), int(role.get("devices") or 0)
    fitting = [
        node
        for node in nodes
        if node.placeable
        and len(node.devices) >= wanted > 0
        and (not types or node.device_type in types)
    ]
    return sorted(fitting, key=lambda node: (_missing(node, wanted), node.name))


def _missing(node: NodeView, wanted: int) -> int:
    free = {device.index for device in node.devices if _is_free(device)}
    return max(wanted - len(free.intersection(_wanted_cell(node, wanted).leaves)), 0)


def _ready(node: NodeView, wanted: int) -> int:
    """Return the instances that fit on the free devices of a node, each in a cell of its own."""
    free = {device.index for device in node.devices if _is_free(device)}
    size = len(_wanted_cell(node, wanted).leaves)
    return sum(
        len(free.intersection(one.leaves)) >= wanted
        for one in _cells(cell(node.tree))
        if len(one.leaves) == size
    )


def _is_free(device: DeviceView) -> bool:
    return device.healthy and device.occupant is None


def _wanted_cell(node: NodeView, wanted: int) -> MapCell:
    """Return the smallest cell with enough devices; of several, the one with most free ones."""
    free = {device.index for device in node.devices if _is_free(device)}
    fitting = [one for one in _cells(cell(node.tree)) if len(one.leaves) >= wanted]
    return min(
        fitting, key=lambda one: (len(one.leaves), -len(free.intersection(one.leaves)), one.leaves)
    )


def _cells(root: MapCell) -> Iterator[MapCell]:
    yield root
    for child in root.children:
        yield from _cells(child)


def jobs_on(nodes: Iterable[NodeView]) -> list[int]:
    """Return the jobs on nodes that the viewer may see."""
    return sorted(
        {
            device.occupant.job_id
            for node in nodes
            for device in node.devices
            if device.occupant is not None and device.occupant.job_id is not None
        }
    )


def waiting_picture(
    candidates: Sequence[NodeView],
    spec: Mapping[str, Any],
    jobs: Mapping[int, JobRow],
) -> WaitingPicture:
    """Draw the best candidates, with the jobs on them as far as the viewer may see them."""
    role = wanted_role(spec)
    wanted = int(role.get("devices") or 0)
    shown = candidates[:MOST_NODES]
    drawn = tuple(
        _candidate(node, wanted, jobs, TOP + ROW * place) for place, node in enumerate(shown)
    )
    return WaitingPicture(
        wanted=wanted,
        instances=int(role.get("instances", 1)),
        ready=sum(_ready(node, wanted) for node in candidates),
        level=_wanted_cell(shown[0], wanted).level if shown else "",
        nodes=drawn,
        total=len(candidates),
        height=TOP + ROW * len(drawn),
    )


def _candidate(node: NodeView, wanted: int, jobs: Mapping[int, JobRow], y: int) -> CandidateNode:
    frame = _wanted_cell(node, wanted)
    order = cell(node.tree).leaves
    each = WIDTH / max(len(order), 1)
    by_index = {device.index: device for device in node.devices}
    placed = [(place, by_index[index]) for place, index in enumerate(order) if index in by_index]
    missing = _missing(node, wanted)
    blocks = tuple(
        _block(list(group), frozenset(frame.leaves), each, jobs, missing)
        for _key, group in groupby(placed, key=lambda one: _group_of(one[1]))
    )
    places = [order.index(leaf) for leaf in frame.leaves]
    return CandidateNode(
        name=node.name,
        y=y,
        blocks=blocks,
        frame_x=round(LEFT + min(places) * each - 3, 1),
        frame_width=round((max(places) - min(places) + 1) * each + 2, 1),
        missing=missing,
        complete=_complete([one for one in blocks if one.wanted and one.look != "free"], missing),
    )


def _group_of(device: DeviceView) -> str:
    if device.occupant is not None:
        return device.occupant.allocation
    return "free" if device.healthy else "bad"


def _block(
    placed: list[tuple[int, DeviceView]],
    frame: frozenset[int],
    each: float,
    jobs: Mapping[int, JobRow],
    missing: int,
) -> Block:
    first, device = placed[0]
    held = device.occupant
    row = jobs.get(held.job_id) if held is not None and held.job_id is not None else None
    inside = sum(one.index in frame for _place, one in placed)
    x, width = LEFT + first * each, len(placed) * each - 4
    count = words.count(len(placed))
    if row is not None:
        look, name, shorter = "own", f"{row.name} {row.id}", str(row.id)
    elif held is not None:
        look, shorter = "other", _("other")
        name = _("a job of %(tenant)s") % {"tenant": words.tenant(held.tenant)}
    elif device.healthy:
        look, name, shorter = "free", _("%(count)s free") % {"count": count}, _("free")
    else:
        look, name, shorter = "bad", _("unhealthy"), _("bad")
    end = _end_of(row) if row is not None else None
    return Block(
        look=look,
        name=name,
        short=fitting_label(width, name, shorter, count),
        until=fitting_label(width, *_until(look, end)),
        url=job_url(row.id) if row is not None else "",
        devices=len(placed),
        wanted=inside,
        end=end,
        ends=_ends(look, end),
        frees=_frees(look, inside, missing),
        x=round(x, 1),
        width=round(width, 1),
        tip_x=round(min(x, VIEW_WIDTH - TIP_WIDTH - 8), 1),
    )


def fitting_label(width: float, *texts: str) -> str:
    """Return the first text that fits into a block; empty if none fits."""
    for text in texts:
        letters = sum(1 if ord(letter) < _WIDE else 2 for letter in text)
        if letters * LETTER + 2 * PAD <= width:
            return text
    return ""


def _until(look: str, end: datetime | None) -> tuple[str, ...]:
    """Return what frees a block, from the longest text to the shortest."""
    if look == "own" and end is None:
        return (_("no time limit"), _("no limit"))
    if end is not None:
        return (_("until %(time)s") % {"time": words.clock(end)}, f"{words.local(end):%H:%M}")
    if look == "other":
        return (_("end not visible"),)
    return ()


def _end_of(row: JobRow) -> datetime | None:
    if row.started_at is None or row.max_duration_seconds is None:
        return None
    return row.started_at + timedelta(seconds=row.max_duration_seconds)


def _ends(look: str, end: datetime | None) -> str:
    if look == "own":
        if end is None:
            return _("No time limit: its end is unknown.")
        return _("Ends by %(time)s at the latest (time limit).") % {"time": words.clock(end)}
    return {
        "other": _("Its end is visible to its tenant only."),
        "bad": _("Available again when an admin or a probe finds it healthy."),
    }.get(look, _("Available now."))


def _frees(look: str, inside: int, missing: int) -> str:
    if look == "free":
        return ""
    if not inside:
        return _("Outside the target cell.")
    return _("Frees %(inside)s of the %(missing)s that are missing here.") % {
        "inside": words.count(min(inside, missing)),
        "missing": words.plural(missing, "device", "devices"),
    }


def _complete(blockers: Sequence[Block], missing: int) -> str:
    if not missing:
        return _("complete now")
    ends = [one.end for one in blockers]
    if any(end is None for end in ends):
        return _("%(missing)s missing") % {"missing": words.plural(missing, "device", "devices")}
    latest = max(end for end in ends if end is not None)
    return _("complete by %(time)s") % {"time": words.clock(latest)}


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeOffer:
    """A change with which the job starts now, with its cost.

    Attributes:
        devices: devices of the changed job.
        ratio: requested devices per offered device; 1 if the size is unchanged.
        finish: latest finish if the time limit grows by ``ratio``; None without a limit.
    """

    text: str
    changes: Mapping[str, Any]
    devices: int
    ratio: float
    cost: str
    question: str
    finish: datetime | None

    @property
    def finish_text(self) -> str:
        """Return the finish as a text; empty if it is unknown."""
        return "" if self.finish is None else words.clock(self.finish)


def offers_of(
    why: Why, spec: Mapping[str, Any], *, state: str, now: datetime
) -> tuple[SizeOffer, ...]:
    """Return the remedies of a waiting job, those closest to its request first."""
    if state != JobState.QUEUED:
        return ()
    asked = devices_of(spec)
    found = [_offer(step, spec, asked, now) for step in why.steps]
    # Remedies without a loss of speed first; the search has sorted equal ones, mildest first.
    return tuple(sorted(found, key=lambda offer: offer.ratio))


def asked_finish(why: Why, spec: Mapping[str, Any]) -> str:
    """Return the latest finish of the job as submitted; empty without estimate or time limit."""
    limit = spec.get("max_duration")
    if why.eta is None or not isinstance(limit, int):
        return ""
    return words.clock(why.eta.p50 + timedelta(seconds=limit))


def devices_of(spec: Mapping[str, Any]) -> int:
    """Return the devices of all instances of a specification."""
    roles: Iterable[Mapping[str, Any]] = spec["roles"].values()
    return sum(int(role.get("instances", 1)) * int(role.get("devices") or 0) for role in roles)


def _offer(
    step: Mapping[str, Any], spec: Mapping[str, Any], asked: int, now: datetime
) -> SizeOffer:
    try:
        devices = devices_of(amended(spec, step["changes"]))
    except AmendError:
        devices = asked
    ratio = asked / devices if devices else 1.0
    limit = spec.get("max_duration")
    return SizeOffer(
        text=step["text"],
        changes=step["changes"],
        devices=devices,
        ratio=ratio,
        cost=_cost(step["kind"], asked, devices, limit),
        question=_("Change from %(asked)s to %(devices)s?")
        % {
            "asked": words.plural(asked, "device", "devices"),
            "devices": words.count(devices),
        }
        if devices != asked
        else _("Apply this change?"),
        finish=now + timedelta(seconds=limit * ratio) if isinstance(limit, int) else None,
    )


def _cost(kind: str, asked: int, devices: int, limit: object) -> str:
    if devices < asked:
        text = _("About %(ratio)s× slower, if its speed is proportional to its devices.") % {
            "ratio": f"{asked / max(devices, 1):.2g}"
        }
        if isinstance(limit, int):
            text += " " + _("Its time limit of %(limit)s does not change.") % {
                "limit": words.duration(limit)
            }
        return text
    if kind in _NO_LOSS:
        return _("The number of devices does not change.")
    if kind == "class":
        return _("The job may be preempted by guaranteed jobs.")
    return _("Its speed may change.")
