"""HiveD cluster configurations: checked as a whole before the cell engine sees them."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from portal.api.importers.documents import parse_document
from portal.api.importers.hived_physical import CellTypes, read_physical_cells, read_types
from portal.api.importers.reading import Report, Section, refuse_rest
from portal.api.importers.result import Imported
from scheduling.core.jobspec.errors import Place

MAX_CONFIG_BYTES: Final = 4 * 1024 * 1024
_MAX_COUNT: Final = 100_000

_OF_THE_OTHER_SERVER: Final = {
    "kubeApiServerAddress": "There is no Kubernetes here.",
    "kubeConfigFilePath": "There is no Kubernetes here.",
    "webServerAddress": "The address is a setting of this server.",
    "forcePodBindThreshold": "There are no pods to bind.",
    "waitingPodSchedulingBlockMilliSec": "Rounds do not block on waiting jobs.",
}


def import_hived(text: str | bytes, content_type: str = "") -> Imported:
    """Check a HiveD configuration.

    Args:
        text: the document as it was sent.
        content_type: of the document; YAML is assumed.

    Returns:
        ``spec`` is the configuration with today's names and addresses as texts, ready for
        ``spec_from_hived``; with warnings and what has no counterpart.

    Raises:
        ImportRefusedError: with everything that is wrong.
    """
    return check_hived(parse_document(text, content_type, max_bytes=MAX_CONFIG_BYTES))


def check_hived(document: object) -> Imported:
    """Check a HiveD configuration that has been read already; see ``import_hived``."""
    report = Report()
    top = Section(document, Place(errors=report.errors), report)
    if document is None:
        top.place.refuse(None, "is empty.", "Send a configuration.", "missing-field")
    for key, words in _OF_THE_OTHER_SERVER.items():
        top.lacks(key, words, needed=False)
    cluster = _required(top, "physicalCluster")
    types = read_types(cluster)
    cells, pinned = read_physical_cells(cluster, types)
    for key in ("skuTypes", "gpuTypes"):
        cluster.lacks(key, "CPU and memory of a device are what its node reports.", needed=False)
    refuse_rest(cluster, ("cellTypes", "physicalCells", "skuTypes"))
    clusters = _virtual_clusters(_required(top, "virtualClusters"), types, cells, pinned)
    refuse_rest(top, ("physicalCluster", "virtualClusters", *_OF_THE_OTHER_SERVER))
    report.raise_errors()
    return Imported(
        spec={
            "physicalCluster": {"cellTypes": types.to_json(), "physicalCells": cells},
            "virtualClusters": clusters,
        },
        warnings=tuple(report.warnings),
        unsupported=tuple(report.unsupported),
    )


def _required(top: Section, key: str) -> Section:
    if top.peek(key) is None:
        top.at(key).refuse(None, "is missing.", f"Give {key}.", "missing-field")
    return top.section(key)


def _virtual_clusters(
    section: Section,
    types: CellTypes,
    cells: Sequence[Mapping[str, Any]],
    pinned: Mapping[str, str],
) -> dict[str, Any]:
    chains = {str(cell.get("cellType")) for cell in cells}
    used: dict[str, str] = {}
    found: dict[str, Any] = {}
    for name, value, place in section.entries():
        if not name.strip():
            place.refuse(name, "is not a name.", "Write a name.")
        vc = Section(value, place, section.report)
        vc.rename("reservedCells", "pinnedCells")
        found[name] = {
            "virtualCells": [_quota(part, types, chains) for part in vc.sections("virtualCells")],
            "pinnedCells": [
                _pinned(part, name, pinned, used) for part in vc.sections("pinnedCells")
            ],
        }
        refuse_rest(vc, ("virtualCells", "pinnedCells"))
    return found


def _quota(part: Section, types: CellTypes, chains: set[str]) -> dict[str, Any]:
    path = part.text("cellType", required=True)
    count = part.integer("cellNumber", 1, _MAX_COUNT, required=True)
    refuse_rest(part, ("cellType", "cellNumber"))
    if path is not None:
        _check_path(part, path, types, chains)
    return {"cellType": path, "cellNumber": count}


def _check_path(part: Section, path: str, types: CellTypes, chains: set[str]) -> None:
    """The first name is a chain of the cluster, each next one lies within the one before."""
    place = part.at("cellType")
    names = path.split(".")
    if not chains or types.is_unclear(names[0]):
        return
    if names[0] not in chains:
        near = difflib.get_close_matches(names[0], sorted(chains), n=1)
        known = near or sorted(chains)[:10]
        place.refuse(
            path,
            f"{names[0]!r} is not the type of any physical cell at the top.",
            f"Begin with one of {', '.join(known)}.",
            "conflict",
        )
        return
    above = names[0]
    for name in names[1:]:
        if name not in types.below(above):
            place.refuse(
                path,
                f"{name!r} does not lie within {above!r}.",
                f"Within it are {', '.join(types.below(above)) or 'no cells'}.",
                "conflict",
            )
            return
        above = name


def _pinned(
    part: Section, vc: str, pinned: Mapping[str, str], used: dict[str, str]
) -> dict[str, Any]:
    part.rename("reservationId", "pinnedCellId")
    name = part.text("pinnedCellId", required=True)
    refuse_rest(part, ("pinnedCellId",))
    if name is not None:
        place = part.at("pinnedCellId")
        if name not in pinned:
            place.refuse(
                name,
                "is on no physical cell.",
                "Put pinnedCellId on a physical cell, or remove it here.",
                "conflict",
            )
        elif name in used:
            place.refuse(
                name,
                f"belongs to {used[name]} already.",
                "Pin a cell to one cluster.",
                "duplicate",
            )
        used.setdefault(name, vc)
    return {"pinnedCellId": name}
