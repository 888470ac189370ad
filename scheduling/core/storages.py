"""Rules of storages: access of jobs, and resolution of the storages of a job."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from scheduling.core.jobspec import FieldError, JobSpec, StorageRequest
from scheduling.core.messages import sentence
from tessera.storage import nested_pairs

MOST_NAMES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageRule:
    """A storage as an admin defined it.

    Attributes:
        source: ``/directory`` of the nodes, or ``server:/export``.
        mount: default mount point in jobs.
        writable: whether jobs may write to it.
        checkpoints: jobs do not mount it, but have their own checkpoint directories in it.
        tenants, vcs: IDs of those who may use it; all may if both are empty.
        defaults: IDs of the virtual clusters whose jobs use it without a request.
    """

    name: str
    source: str
    mount: str
    writable: bool = False
    checkpoints: bool = False
    tenants: frozenset[int] = frozenset()
    vcs: frozenset[int] = frozenset()
    defaults: frozenset[int] = frozenset()

    def serves(self, tenant: int, vc: int) -> bool:
        """Return whether jobs of a tenant's virtual cluster may use it."""
        is_open = not self.tenants and not self.vcs
        return is_open or tenant in self.tenants or vc in self.vcs


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageFacts:
    """Facts of a storage for a round.

    Attributes:
        vcs: IDs of the virtual clusters whose jobs may use it.
        nodes: names of the nodes that have it.
        by_engine: names of further nodes whose container engine can mount it.
    """

    vcs: frozenset[int]
    nodes: frozenset[str]
    by_engine: frozenset[str] = frozenset()


def resolved(
    spec: JobSpec, rules: Iterable[StorageRule], *, tenant: int, vc: int
) -> tuple[JobSpec, list[FieldError]]:
    """Complete the storages of a job: mount points, modes, and defaults of its virtual cluster.

    A storage that the job may not use counts as unknown, so that errors do not reveal its name.

    Returns:
        The job with the valid storages, and the errors.
    """
    usable = {rule.name: rule for rule in rules if rule.serves(tenant, vc)}
    faults: list[FieldError] = []
    mounts = {rule.name: rule for rule in usable.values() if not rule.checkpoints}
    wanted = spec.storage
    if wanted is None:
        names = sorted(name for name, rule in mounts.items() if vc in rule.defaults)
        wanted = tuple(StorageRequest(name=name) for name in names)
    found = [
        _completed(request, mounts, f"storage[{place}]", faults)
        for place, request in enumerate(wanted)
    ]
    complete = tuple(request for request in found if request is not None)
    if not faults:
        faults += _conflicts(complete)
    directory = spec.checkpoint_dir or next(
        (n for n, rule in sorted(usable.items()) if rule.checkpoints and vc in rule.defaults), ""
    )
    faults += _checkpoint_faults(directory, usable)
    return replace(spec, storage=complete, checkpoint_dir=directory), faults


def _completed(
    request: StorageRequest,
    mounts: Mapping[str, StorageRule],
    field: str,
    faults: list[FieldError],
) -> StorageRequest | None:
    rule = mounts.get(request.name)
    if rule is None:
        faults.append(_unknown(f"{field}.name", request.name, mounts))
        return None
    if request.read_only is False and not rule.writable:
        faults.append(
            _fault(
                f"{field}.read_only",
                "false",
                sentence("storage-read-only", name=rule.name),
                sentence("omit-read-only"),
                "conflict",
            )
        )
    read_only = request.read_only if request.read_only is not None else not rule.writable
    return replace(request, mount=request.mount or rule.mount, read_only=read_only)


def _conflicts(found: tuple[StorageRequest, ...]) -> Iterator[FieldError]:
    places = [request.mount for request in found]
    for outer, inner in nested_pairs(places):
        place = len(places) - 1 - places[::-1].index(inner)
        yield _fault(
            f"storage[{place}].mount",
            inner,
            sentence("mounts-conflict", other=outer),
            sentence("use-another-mount"),
            "conflict",
        )


def _checkpoint_faults(directory: str, usable: Mapping[str, StorageRule]) -> Iterator[FieldError]:
    if not directory or directory.startswith("/"):
        return
    stores = {name: rule for name, rule in usable.items() if rule.checkpoints}
    if directory not in stores:
        yield _unknown("checkpoint_dir", directory, stores)


def _unknown(field: str, name: str, known: Mapping[str, StorageRule]) -> FieldError:
    names = ", ".join(sorted(known)[:MOST_NAMES])
    remedy = sentence("choices", names=names) if known else sentence("no-storages-yet")
    return _fault(field, name, sentence("no-such-storage"), remedy, "unknown-storage")


def _fault(field: str, value: str, message: str, remedy: str, code: str) -> FieldError:
    return FieldError(field=field, value=value, message=message, remedy=remedy, code=code)
