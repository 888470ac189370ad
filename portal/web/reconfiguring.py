"""Live reconfiguration: the form of quotas, pinned cells and nodes, preview, application."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from itertools import islice
from typing import Any, Final

from django.contrib import messages
from django.http import QueryDict
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext as _

from portal.web.cluster_drawing import cells_in_words
from portal.web.components import words
from portal.web.forms import error_text, shown_version
from portal.web.viewing import PageRequest, page
from scheduling.clusters.queries.reconfiguration import Effect
from scheduling.clusters.queries.virtual_clusters import spec_in_force
from scheduling.clusters.services.cluster_edits import (
    ChangeVc,
    CordonNode,
    Edit,
    Pin,
    RemoveNode,
    UncordonNode,
    Unpin,
)
from scheduling.clusters.services.reconfiguration import Reconfigured, reconfigure
from scheduling.core.cells import ClusterSpec
from scheduling.topology.current import TopologyNow, current_topology
from tenants.errors import DomainError, FieldError, InvalidError, StaleEditError
from tenants.roles import Permission

PREFIX: Final = "share:"
MOST_FIELDS: Final = 5000
NEW_PINS: Final = 2
MOST_OFFERED: Final = 500
"""Cells and nodes that the fields offer, largest cells first; others are typed."""
_COUNT: Final = re.compile(r"[0-9]{1,6}")
_NAMES: Final = re.compile(r"[\s,]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareCell:
    """One stepper: the number of cells of a level in the quota of a virtual cluster."""

    vc: str
    field: str
    count: int
    promised: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRow:
    """One level of a chain with a stepper for each virtual cluster.

    Attributes:
        cells: complete cells in the cluster.
    """

    chain: str
    device_type: str
    level: str
    type: str
    devices: int
    cells: int
    shares: tuple[ShareCell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PinRow:
    """An existing pinned cell, with the choice to unpin it."""

    vc: str
    name: str
    address: str
    field: str
    is_going: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPin:
    """A line for a cell to pin; empty at first."""

    number: int
    vc: str = ""
    name: str = ""
    address: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """Input of the form.

    Attributes:
        counts: counts by virtual cluster, chain and cell type; unchanged without an entry.
        unpinned: virtual cluster and name.
        removed, cordoned, uncordoned: names of nodes.
        version: topology version from which the form was rendered.
    """

    counts: Mapping[tuple[str, str, str], int]
    unpinned: frozenset[tuple[str, str]]
    pins: tuple[NewPin, ...]
    removed: tuple[str, ...]
    cordoned: tuple[str, ...]
    uncordoned: tuple[str, ...]
    reason: str
    version: int | None

    def digest(self) -> str:
        """Return the digest of a preview, so that the applied change is the previewed one."""
        parts = [
            sorted((*key, count) for key, count in self.counts.items()),
            sorted(self.unpinned),
            [(pin.vc, pin.name, pin.address) for pin in self.pins],
            [self.removed, self.cordoned, self.uncordoned],
            self.version,
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


EMPTY: Final = Sent(
    counts={},
    unpinned=frozenset(),
    pins=(),
    removed=(),
    cordoned=(),
    uncordoned=(),
    reason="",
    version=None,
)


def field_name(*parts: str) -> str:
    """Return the name of a field; virtual clusters, chains and levels may have any character."""
    return PREFIX + json.dumps(parts, separators=(",", ":"))


def read_form(sent: QueryDict) -> Sent:
    """Read the posted form, before the comparison with stored rows.

    Raises:
        InvalidError: an invalid number, or an unknown field.
    """
    faults: list[FieldError] = []
    counts: dict[tuple[str, str, str], int] = {}
    unpinned: set[tuple[str, str]] = set()
    for name in [name for name in sent if name.startswith(PREFIX)][:MOST_FIELDS]:
        key, text = _parts(name), (sent.get(name) or "0").strip()
        if len(key) == 2:
            unpinned.add((key[0], key[1]))
        elif len(key) == 3 and _COUNT.fullmatch(text):
            counts[key[0], key[1], key[2]] = int(text)
        else:
            faults.append(
                FieldError(
                    field="cells",
                    value=text[:40],
                    message=gettext("%(value)s is not a valid number of cells.")
                    % {"value": text[:40] or "–"},
                    remedy=gettext("Enter a whole number of at least 0."),
                )
            )
    InvalidError.raise_if(faults)
    return Sent(
        counts=counts,
        unpinned=frozenset(unpinned),
        pins=tuple(_pins(sent)),
        removed=_names(sent, "removed"),
        cordoned=_names(sent, "cordoned"),
        uncordoned=_names(sent, "uncordoned"),
        reason=(sent.get("reason") or "").strip(),
        version=shown_version(sent.get("version") or ""),
    )


def edits_of(sent: Sent, spec: ClusterSpec) -> tuple[Edit, ...]:
    """Return the differences between form and guarantees as edits."""
    edits: list[Edit] = [*_changes(sent, spec)]
    edits += [Unpin(virtual_cluster=vc, name=name) for vc, name in sorted(sent.unpinned)]
    edits += [Pin(virtual_cluster=pin.vc, name=pin.name, address=pin.address) for pin in sent.pins]
    reason = sent.reason or "reconfigured"
    edits += [RemoveNode(node=name) for name in sent.removed]
    edits += [CordonNode(node=name, reason=reason) for name in sent.cordoned]
    edits += [UncordonNode(node=name, reason=sent.reason) for name in sent.uncordoned]
    return tuple(edits)


def share_rows(topology: TopologyNow, spec: ClusterSpec, sent: Sent) -> tuple[ShareRow, ...]:
    """Return the steppers; posted values replace stored ones."""
    promised = _promised(spec)
    return tuple(
        ShareRow(
            chain=chain.name,
            device_type=chain.device_type,
            level=level.level,
            type=level.type,
            devices=level.devices,
            cells=level.cells,
            shares=tuple(
                ShareCell(
                    vc=vc,
                    field=field_name(vc, chain.name, level.type),
                    promised=promised.get((vc, chain.name, level.type), 0),
                    count=sent.counts.get(
                        (vc, chain.name, level.type),
                        promised.get((vc, chain.name, level.type), 0),
                    ),
                )
                for vc in spec.virtual_clusters
            ),
        )
        for chain in topology.chains.values()
        for level in reversed(chain.levels)
    )


def pin_rows(spec: ClusterSpec, sent: Sent) -> tuple[PinRow, ...]:
    return tuple(
        PinRow(
            vc=vc,
            name=name,
            address=address,
            field=field_name(vc, name),
            is_going=(vc, name) in sent.unpinned,
        )
        for vc, share in spec.virtual_clusters.items()
        for name, address in share.pinned.items()
    )


def new_pins(sent: Sent) -> tuple[NewPin, ...]:
    """Return the lines for new pins: filled ones, then empty ones."""
    filled = [
        NewPin(number=number, vc=pin.vc, name=pin.name, address=pin.address)
        for number, pin in enumerate(sent.pins)
    ]
    empty = [NewPin(number=number) for number in range(len(filled), max(NEW_PINS, len(filled)))]
    return (*filled, *empty)


def _addresses(topology: TopologyNow) -> Iterator[tuple[str, str]]:
    """Yield the address of each cell up to a node, with its devices and level in words."""
    for chain in topology.cells.chains.values():
        view = topology.chains[chain.name]
        for level in reversed(view.levels):
            text = cells_in_words(1, view.device_type, level.level)
            for cell in range(chain.base[level.number], chain.base[level.number + 1]):
                yield chain.address[cell], text


def _changes(sent: Sent, spec: ClusterSpec) -> Iterator[ChangeVc]:
    promised = _promised(spec)
    for vc in spec.virtual_clusters:
        wanted = {key: count for key, count in promised.items() if key[0] == vc}
        wanted |= {key: count for key, count in sent.counts.items() if key[0] == vc}
        if all(count == promised.get(key, 0) for key, count in wanted.items()):
            continue
        yield ChangeVc(
            virtual_cluster=vc,
            cells=[
                {"chain": chain, "level": level, "count": count}
                for (_, chain, level), count in sorted(wanted.items())
            ],
        )


def _promised(spec: ClusterSpec) -> dict[tuple[str, str, str], int]:
    return {
        (vc, quota.chain, quota.level): quota.count
        for vc, share in spec.virtual_clusters.items()
        for quota in share.quotas
    }


def _pins(sent: QueryDict) -> Iterator[NewPin]:
    for number in range(NEW_PINS):
        vc, name, address = (
            (sent.get(f"pin-{part}-{number}") or "").strip() for part in ("vc", "name", "address")
        )
        if name or address:
            yield NewPin(number=number, vc=vc, name=name, address=address)


def _names(sent: QueryDict, field: str) -> tuple[str, ...]:
    words: Sequence[str] = _NAMES.split((sent.get(field) or "").strip())
    return tuple(dict.fromkeys(word for word in words if word))


def _parts(name: str) -> tuple[str, ...]:
    try:
        key = json.loads(name.removeprefix(PREFIX))
    except ValueError:
        return ()
    if isinstance(key, list) and all(isinstance(part, str) for part in key):
        return tuple(key)
    return ()


@page
def reconfigure_page(asked: PageRequest) -> HttpResponseBase:
    """Show the form; preview its input; after a preview, apply the change."""
    asked.viewer.require(Permission.EDIT_VC, what="virtual clusters")
    if asked.http.method != "POST":
        return _shown(asked, EMPTY)
    try:
        sent = read_form(asked.http.POST)
    except DomainError as error:
        return _shown(asked, EMPTY, refused=error_text(error))
    try:
        return _answered(asked, sent)
    except StaleEditError:
        return _shown(asked, sent, is_stale=True, status=HTTPStatus.CONFLICT)
    except DomainError as error:
        return _shown(asked, sent, refused=error_text(error))


def _answered(asked: PageRequest, sent: Sent) -> HttpResponseBase:
    """Return the preview; or apply the change, if it is exactly the previewed one."""
    edits = edits_of(sent, spec_in_force(current_topology()))
    if not edits:
        return _shown(asked, sent, nothing=True)
    wants_it = "apply" in asked.http.POST
    was_seen = asked.http.POST.get("seen") == sent.digest()
    answer = reconfigure(
        viewer=asked.viewer,
        edits=edits,
        now=asked.now,
        dry_run=not (wants_it and was_seen),
        expected_version=sent.version,
        reason=sent.reason,
    )
    if answer.dry_run:
        return _shown(asked, sent, effect=answer.effect, must_look_again=wants_it)
    messages.success(asked.http, done_words(answer))
    return redirect("virtual-clusters")


def done_words(answer: Reconfigured) -> str:
    """Describe the applied change, for the confirmation."""
    loses = len(answer.effect.loses)
    if not loses:
        return _("Cluster reconfigured. No running job lost its guarantee.")
    return ngettext(
        "Cluster reconfigured. %(count)s running job becomes opportunistic in the next round.",
        "Cluster reconfigured. %(count)s running jobs become opportunistic in the next round.",
        loses,
    ) % {"count": words.count(loses)}


def _shown(
    asked: PageRequest,
    sent: Sent,
    *,
    effect: Effect | None = None,
    status: int = HTTPStatus.OK,
    **said: Any,
) -> HttpResponseBase:
    topology = current_topology()
    spec = spec_in_force(topology)
    context = {
        "vcs": tuple(spec.virtual_clusters),
        "rows": share_rows(topology, spec, sent),
        "pins": pin_rows(spec, sent),
        "new_pins": new_pins(sent),
        "sent": sent,
        "version": topology.version,
        "effect": effect,
        "acts": (*sent.cordoned, *sent.uncordoned, *sent.removed),
        "seen": sent.digest() if effect is not None and effect.change.fits else "",
        "can_manage_nodes": asked.viewer.can(Permission.MANAGE_NODES),
        "addresses": tuple(islice(_addresses(topology), MOST_OFFERED)),
        "node_names": tuple(islice(topology.trees, MOST_OFFERED)),
        **said,
    }
    return asked.render("virtual_clusters/reconfigure.html", context, status=status)
