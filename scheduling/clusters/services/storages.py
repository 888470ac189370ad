"""Storages: creation, edits and deletion by admins, and the probes of nodes."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from django.db import IntegrityError, transaction
from django.db.models import Q

from scheduling.clusters.models import Node, Storage, VirtualCluster
from scheduling.clusters.services.node_values import place_problem
from scheduling.common.edits import text_errors
from scheduling.common.on_commit import request_round_on_commit
from scheduling.core.jobspec import Demand
from scheduling.core.messages import sentence
from scheduling.jobs.models import Job
from tenants.audit import record
from tenants.edits import UNCHANGED, Unchanged, given, require_version, update_row
from tenants.errors import (
    ConflictError,
    DuplicateError,
    FieldError,
    InvalidError,
    NotFoundError,
)
from tenants.models import Tenant
from tenants.roles import Permission
from tenants.viewers import Viewer
from tessera.isolation import is_within
from tessera.messages import plain
from tessera.storage import (
    MAX_SOURCES,
    STORAGE_NAME,
    StorageProbe,
    is_nfs,
    mount_problem,
    source_problem,
)

KIND: Final = "storage"
MOST_IDS: Final = 1000
_FLAGS: Final = ("writable", "checkpoints")
_LISTS: Final = ("tenants", "virtual_clusters", "default_for")


def create_storage(
    *,
    viewer: Viewer,
    name: str,
    source: str,
    mount: str = "",
    writable: bool = False,
    checkpoints: bool = False,
    tenants: Sequence[str] = (),
    virtual_clusters: Sequence[str] = (),
    default_for: Sequence[str] = (),
    note: str = "",
    now: datetime,
) -> Storage:
    """Create a storage.

    Args:
        viewer: a node manager.
        name: name in the documents of jobs.
        source: ``/directory`` of the nodes, or ``server:/export``.
        mount: default mount point in jobs; not for checkpoints.
        writable: whether jobs may write to it.
        checkpoints: whether it is for checkpoints only; jobs have their own directories in it.
        tenants: names of tenants that may use it.
        virtual_clusters: names of virtual clusters that may use it; without both, all may.
        default_for: virtual clusters whose jobs use it without a request.
        note: free text.
        now: the current time.

    Raises:
        InvalidError: values are not valid; the error lists all faults.
        DuplicateError: another storage has the name.
    """
    viewer.require(Permission.MANAGE_NODES, what="storages")
    values: dict[str, Any] = {
        "name": name,
        "source": source,
        "mount": mount,
        "writable": writable,
        "checkpoints": checkpoints,
        "tenants": tenants,
        "virtual_clusters": virtual_clusters,
        "default_for": default_for,
        "note": note,
    }
    try:
        with transaction.atomic():
            columns = _checked(values, Storage())
            row = Storage.objects.create(**columns, created_at=now)
            record(actor=viewer, action="storage.create", obj=row, after=shown(columns))
            request_round_on_commit(KIND)
    except IntegrityError:
        raise _taken(name) from None
    return row


def update_storage(
    *,
    viewer: Viewer,
    storage_id: int,
    source: str | Unchanged = UNCHANGED,
    mount: str | Unchanged = UNCHANGED,
    writable: bool | Unchanged = UNCHANGED,
    checkpoints: bool | Unchanged = UNCHANGED,
    tenants: Sequence[str] | Unchanged = UNCHANGED,
    virtual_clusters: Sequence[str] | Unchanged = UNCHANGED,
    default_for: Sequence[str] | Unchanged = UNCHANGED,
    note: str | Unchanged = UNCHANGED,
    expected_version: int | None = None,
) -> Storage:
    """Update a storage. Running jobs do not change; queued jobs are checked again.

    Raises:
        NotFoundError: the storage is unknown.
        InvalidError: values are not valid; the error lists all faults.
        StaleEditError: the storage was edited since ``expected_version``.
    """
    viewer.require(Permission.MANAGE_NODES, what="storages")
    values = given(
        source=source,
        mount=mount,
        writable=writable,
        checkpoints=checkpoints,
        tenants=tenants,
        virtual_clusters=virtual_clusters,
        default_for=default_for,
        note=note,
    )
    with transaction.atomic():
        row = _row(storage_id, expected_version)
        columns = _checked(values, row)
        has_changed = update_row(
            Storage.objects.all(),
            row,
            kind=KIND,
            expected_version=expected_version,
            read_version=row.version,
            values=columns,
            viewer=viewer,
            action="storage.update",
            shown=shown,
        )
        if has_changed:
            request_round_on_commit(KIND)
    return row


@transaction.atomic
def delete_storage(
    *, viewer: Viewer, storage_id: int, expected_version: int | None = None
) -> None:
    """Delete a storage that no queued or running job uses; its files remain.

    Raises:
        NotFoundError: the storage is unknown.
        ConflictError: jobs use it; the error has their number.
        StaleEditError: the storage was edited since ``expected_version``.
    """
    viewer.require(Permission.MANAGE_NODES, what="storages")
    row = _row(storage_id, expected_version)
    demands = Job.objects.unscoped().live().values_list("demand", flat=True)
    jobs = sum(row.name in Demand.from_json(demand).storages for demand in demands)
    if jobs:
        raise ConflictError(
            sentence("jobs-use-storage", n=jobs, name=row.name),
            field="name",
            value=row.name,
            remedy=sentence("stop-jobs-of-storage"),
        )
    before = {"name": row.name, "source": row.source, "mount": row.mount}
    record(actor=viewer, action="storage.delete", obj=row, before=before)
    row.delete()
    request_round_on_commit(KIND)


def _row(pk: int, expected_version: int | None) -> Storage:
    row = Storage.objects.filter(pk=pk).first()
    if row is None:
        raise NotFoundError(sentence("storage-not-found"), field="id", value=pk)
    require_version(row.version, expected_version, kind=KIND)
    return row


def _taken(name: str) -> DuplicateError:
    return DuplicateError(
        sentence("storage-exists", name=name),
        field="name",
        value=name,
        remedy=sentence("choose-another-name"),
    )


def shown(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return columns for the audit: tenants and virtual clusters by name."""
    found = dict(columns)
    kinds: tuple[tuple[str, Any], ...] = (
        ("tenants", Tenant),
        ("vcs", VirtualCluster),
        ("defaults", VirtualCluster),
    )
    for column, model in kinds:
        if found.get(column):
            rows = model.objects.unscoped().filter(pk__in=found[column]).order_by("name")
            found[column] = list(rows.values_list("name", flat=True))
    return found


# -- checks --------------------------------------------------------------------------------------


def _checked(values: Mapping[str, Any], row: Storage) -> dict[str, Any]:
    """Return the columns of the given values.

    Raises:
        InvalidError: values are not valid, inconsistent, or in conflict with other storages.
    """
    faults = _faults(values)
    InvalidError.raise_if(faults)
    columns = {key: value for key, value in values.items() if key not in _LISTS}
    tenants = dict(Tenant.objects.unscoped().values_list("name", "id"))
    clusters = VirtualCluster.objects.unscoped().filter(
        Q(archived_at=None) | Q(pk__in=[*row.vcs, *row.defaults])
    )
    vcs = dict(clusters.values_list("name", "id"))
    for key, column, known in (
        ("tenants", "tenants", tenants),
        ("virtual_clusters", "vcs", vcs),
        ("default_for", "defaults", vcs),
    ):
        if key in values:
            columns[column] = _ids(key, values[key], known, faults)
    InvalidError.raise_if(faults)
    whole = {
        column: columns.get(column, getattr(row, column))
        for column in ("source", "mount", *_FLAGS, "defaults", "tenants", "vcs")
    }
    InvalidError.raise_if([*_together(whole), *_beside_others(whole, row.pk)])
    return columns


def _faults(values: Mapping[str, Any]) -> list[FieldError]:
    faults = []
    if "name" in values and not (
        isinstance(values["name"], str) and STORAGE_NAME.fullmatch(values["name"])
    ):
        remedy = sentence("use-storage-name")
        faults.append(_fault("name", values["name"], remedy))
    faults += [
        _fault(field, values[field], sentence("use-boolean"))
        for field in _FLAGS
        if not isinstance(values.get(field, False), bool)
    ]
    if "source" in values:
        problem = _source_problem(values["source"])
        if problem:
            faults.append(
                _fault(
                    "source", values["source"], sentence("source-problem", problem=plain(problem))
                )
            )
    if values.get("mount", ""):
        mount = values["mount"]
        problem = mount_problem(mount) if isinstance(mount, str) else "must be a string"
        if problem:
            faults.append(
                _fault("mount", mount, sentence("mount-problem", problem=plain(problem)))
            )
    if "note" in values:
        faults += text_errors(values["note"], field="note", longest=500)
    return faults


def _source_problem(source: object) -> str | None:
    if not isinstance(source, str) or not source:
        return "must be an absolute path, or server:/export"
    problem = source_problem(source)
    return problem or (None if is_nfs(source) else place_problem(source)) or None


def _fault(field: str, value: object, remedy: str) -> FieldError:
    return FieldError(
        field=field, value=value, message=sentence("not-field-of-storage"), remedy=remedy
    )


def _ids(
    field: str, names: object, known: Mapping[str, int], faults: list[FieldError]
) -> list[int]:
    if not isinstance(names, Sequence) or isinstance(names, str) or len(names) > MOST_IDS:
        faults.append(_fault(field, names, sentence("give-names", most=MOST_IDS)))
        return []
    found: list[int] = []
    for name in names:
        if isinstance(name, str) and name in known:
            found.append(known[name])
        else:
            faults.append(_fault(field, name, sentence("name-known-one")))
    return sorted(set(found))


def _together(whole: Mapping[str, Any]) -> list[FieldError]:
    """Return the faults of inconsistent values."""
    faults = []
    if whole["checkpoints"]:
        if whole["mount"]:
            faults.append(_fault("mount", whole["mount"], sentence("omit-mount")))
        if is_nfs(whole["source"]):
            faults.append(_fault("source", whole["source"], sentence("use-mounted-path")))
    elif not whole["mount"]:
        faults.append(_fault("mount", whole["mount"], sentence("give-mount")))
    vcs = VirtualCluster.objects.unscoped().filter(pk__in=whole["defaults"])
    is_open = not whole["tenants"] and not whole["vcs"]
    return faults + [
        _fault("default_for", vc.name, sentence("default-needs-access"))
        for vc in vcs.order_by("name")
        if not is_open and vc.pk not in whole["vcs"] and vc.tenant_id not in whole["tenants"]
    ]


def _beside_others(whole: Mapping[str, Any], pk: int | None) -> list[FieldError]:
    """Return conflicts with other storages: nested sources, and a second default.

    A job with write access to an outer directory could replace an inner one by a link.
    """
    faults = []
    for other in Storage.objects.exclude(pk=pk or 0).order_by("name"):
        a, b = str(whole["source"]), other.source
        is_nested = a != b and (is_within(a, b) or is_within(b, a))
        if is_nested or (a == b and (whole["checkpoints"] or other.checkpoints)):
            message = sentence("source-conflicts", name=other.name)
            faults.append(
                FieldError(
                    field="source", value=a, message=message, remedy=sentence("use-source-apart")
                )
            )
        both = set(whole["defaults"]) & set(other.defaults)
        if both and whole["checkpoints"] and other.checkpoints:
            message = sentence("second-checkpoint-store", name=other.name)
            faults.append(
                FieldError(
                    field="default_for",
                    value=None,
                    message=message,
                    remedy=sentence("remove-other-default"),
                )
            )
    return faults


# -- probes --------------------------------------------------------------------------------------


def sources_to_probe() -> list[str]:
    """Return the sources of all storages, each once, at most as many as a request may have."""
    sources = Storage.objects.order_by("source").values_list("source", flat=True).distinct()
    return list(sources[:MAX_SOURCES])


@transaction.atomic
def record_storages(*, node_id: int, probes: Sequence[StorageProbe]) -> None:
    """Store the probes of a node's storages; request a round if one became usable or unusable."""
    row = Node.objects.filter(pk=node_id, removed_at=None).only("storages").first()
    if row is None:
        return
    found = {
        probe.source: {key: value for key, value in probe.to_json().items() if key != "source"}
        for probe in probes
    }
    if found == row.storages:
        return
    Node.objects.filter(pk=node_id).update(storages=found)
    if _causes(found) != _causes(row.storages):
        request_round_on_commit("probe")


def _causes(probes: Mapping[str, Mapping[str, Any]]) -> dict[str, object]:
    return {source: probe.get("cause") for source, probe in probes.items()}
