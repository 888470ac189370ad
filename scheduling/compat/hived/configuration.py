"""Validation of HiveD cluster configurations before the cell engine uses them."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from scheduling.compat.documents import parse_document
from scheduling.compat.hived.messages import TABLE, phrase
from scheduling.compat.hived.physical import CellTypes, read_physical_cells, read_types
from scheduling.compat.reading import ParseReport, Section, refuse_unknown_keys
from scheduling.compat.result import Imported
from scheduling.core.jobspec.errors import DocumentPlace
from tessera.messages import Listing, Parameter

MAX_CONFIG_BYTES: Final = 4 * 1024 * 1024
_MAX_COUNT: Final = 100_000

_OF_THE_OTHER_SERVER: Final = {
    "kubeApiServerAddress": phrase("hived-kubernetes"),
    "kubeConfigFilePath": phrase("hived-kubernetes"),
    "webServerAddress": phrase("hived-address"),
    "forcePodBindThreshold": phrase("hived-pods"),
    "waitingPodSchedulingBlockMilliSec": phrase("hived-blocking"),
}


def import_hived(text: str | bytes, content_type: str = "") -> Imported:
    """Validate a HiveD configuration.

    Args:
        text: the document as it was sent.
        content_type: media type of the document; YAML by default.

    Returns:
        The configuration in ``spec``, with current key names and addresses as strings, ready for
        ``spec_from_hived``; with warnings and unsupported parts.

    Raises:
        ImportRefusedError: the configuration is not valid; the error lists all faults.
    """
    return check_hived(parse_document(text, content_type, max_bytes=MAX_CONFIG_BYTES))


def check_hived(document: object) -> Imported:
    """Validate a parsed HiveD configuration; see ``import_hived``."""
    report = ParseReport()
    top = Section(document, DocumentPlace(errors=report.errors), report)
    if document is None:
        top.place.refuse(None, phrase("hived-empty"), phrase("hived-send"), "missing-field")
    for key, words in _OF_THE_OTHER_SERVER.items():
        top.leave_out(key, words, needed=False)
    cluster = _required(top, "physicalCluster")
    types = read_types(cluster)
    cells, pinned = read_physical_cells(cluster, types)
    for key in ("skuTypes", "gpuTypes"):
        cluster.leave_out(key, phrase("hived-sku"), needed=False)
    refuse_unknown_keys(cluster, ("cellTypes", "physicalCells", "skuTypes"))
    clusters = _virtual_clusters(_required(top, "virtualClusters"), types, cells, pinned)
    refuse_unknown_keys(top, ("physicalCluster", "virtualClusters", *_OF_THE_OTHER_SERVER))
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
        top.at(key).refuse(
            None, phrase("import-missing"), phrase("import-give", key=key), "missing-field"
        )
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
            place.refuse(name, phrase("hived-not-a-name"), phrase("hived-write-name"))
        vc = Section(value, place, section.report)
        vc.rename("reservedCells", "pinnedCells")
        found[name] = {
            "virtualCells": [_quota(part, types, chains) for part in vc.sections("virtualCells")],
            "pinnedCells": [
                _pinned(part, name, pinned, used) for part in vc.sections("pinnedCells")
            ],
        }
        refuse_unknown_keys(vc, ("virtualCells", "pinnedCells"))
    return found


def _quota(part: Section, types: CellTypes, chains: set[str]) -> dict[str, Any]:
    path = part.text("cellType", required=True)
    count = part.integer("cellNumber", 1, _MAX_COUNT, required=True)
    refuse_unknown_keys(part, ("cellType", "cellNumber"))
    if path is not None:
        _check_path(part, path, types, chains)
    return {"cellType": path, "cellNumber": count}


def _check_path(part: Section, path: str, types: CellTypes, chains: set[str]) -> None:
    """Check that the path starts with a chain and that each next name is inside the one before."""
    place = part.at("cellType")
    names = path.split(".")
    if not chains or types.is_unclear(names[0]):
        return
    if names[0] not in chains:
        near = difflib.get_close_matches(names[0], sorted(chains), n=1)
        known = near or sorted(chains)[:10]
        place.refuse(
            path,
            phrase("hived-not-a-chain", name=repr(names[0])),
            phrase("hived-begin-with", names=Listing(tuple(known))),
            "conflict",
        )
        return
    above = names[0]
    for name in names[1:]:
        if name not in types.below(above):
            place.refuse(
                path,
                phrase("hived-not-within", name=repr(name), above=repr(above)),
                phrase("hived-within-are", names=_listed(types.below(above))),
                "conflict",
            )
            return
        above = name


def _listed(names: Sequence[str]) -> Parameter:
    return Listing(tuple(names)) if names else TABLE.message("hived-no-cells")


def _pinned(
    part: Section, vc: str, pinned: Mapping[str, str], used: dict[str, str]
) -> dict[str, Any]:
    part.rename("reservationId", "pinnedCellId")
    name = part.text("pinnedCellId", required=True)
    refuse_unknown_keys(part, ("pinnedCellId",))
    if name is not None:
        place = part.at("pinnedCellId")
        if name not in pinned:
            place.refuse(name, phrase("hived-pin-unknown"), phrase("hived-pin-a-cell"), "conflict")
        elif name in used:
            place.refuse(
                name,
                phrase("hived-pin-used", name=used[name]),
                phrase("hived-pin-once"),
                "duplicate",
            )
        used.setdefault(name, vc)
    return {"pinnedCellId": name}
