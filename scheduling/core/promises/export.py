"""Export of one virtual cluster and one span: the complete input of an audit."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from scheduling.core.cells import ClusterSpec, Quota, VcSpec
from scheduling.core.jobspec import Demand
from scheduling.core.round.stored import read_value
from scheduling.core.simulation import ClusterChange
from scheduling.core.values import ClusterSnapshot, HeldLeaf, JobFacts, NodeFacts, QueuedJob

FORMAT: Final = 1
OTHERS: Final = "(others)"
"""Name of the guarantees of all other virtual clusters together."""


class UnknownFormatError(ValueError):
    """The export has a format that this version cannot read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """A span in which a job held devices; times in seconds since the epoch.

    Attributes:
        end: None if the job still held them at the end of the span.
        members: its devices by member of the gang, with the virtual leaves.
        demand: the gang, if it is not the requested one.
    """

    start: float
    end: float | None
    members: tuple[tuple[HeldLeaf, ...], ...]
    demand: Demand | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedJob:
    """A guaranteed job of the virtual cluster with its actual history.

    Attributes:
        job: as submitted, without gates.
        eligible: time at which its last gate opened.
        runs: its runs that overlap the span, in order; the first may begin before it.
        work: seconds of work from the start of the span at the requested size; None if the job
            has not ended.
        start_seconds: seconds from a start to the first progress.
        withdrawn: time at which it ended without a start.
        grace: longest grace of the victims of its first start; None without victims.
    """

    job: QueuedJob
    eligible: float
    runs: tuple[JobRun, ...] = ()
    work: float | None = None
    start_seconds: float = 0.0
    withdrawn: float | None = None
    grace: float | None = None
    known: JobFacts = field(default_factory=JobFacts)


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherUse:
    """Devices of a job outside the audit that counts towards the caps of its owner.

    Attributes:
        in_vc: whether it belongs to the audited virtual cluster.
    """

    owner: int
    in_vc: bool
    devices: int
    start: float
    end: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """A guaranteed job was preempted for a job of another virtual cluster."""

    job: int
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReturn:
    """Lent devices that a borrower gave back for a job of the virtual cluster."""

    job: int
    devices: int
    asked: float
    released: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseExport:
    """All facts of an audit.

    Attributes:
        vc: ID of the virtual cluster.
        since: start of the span in seconds since the epoch.
        until: end of the span.
        grace: seconds that a preempted job has to leave.
        snapshot: the cluster at the start of the span. Its jobs are guaranteed jobs of the virtual
            cluster. Guarantees of other virtual clusters are merged (``OTHERS``).
        jobs: every guaranteed job of the virtual cluster that lived in the span.
        changes: changes of the cluster in the span.
        latest: newest facts by job, from which speeds at other sizes are fitted.
    """

    format: int = FORMAT
    vc: int
    since: float
    until: float
    grace: float
    snapshot: ClusterSnapshot
    jobs: tuple[AuditedJob, ...]
    changes: tuple[ClusterChange, ...] = ()
    latest: Mapping[int, JobFacts] = field(default_factory=dict)
    other_use: tuple[OtherUse, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    returns: tuple[DeviceReturn, ...] = ()

    @property
    def name(self) -> str:
        """Name of the virtual cluster."""
        return next(vc.name for vc in self.snapshot.vcs if vc.id == self.vc)

    @property
    def tenant(self) -> int:
        """Tenant of the virtual cluster."""
        return next(vc.tenant for vc in self.snapshot.vcs if vc.id == self.vc)

    def allowance(self, job: AuditedJob) -> float:
        """Return the seconds by which a job may wait longer than on a private cluster.

        The private cluster starts a job as soon as it can. Here, the scheduler sees the job within
        one round, and starts it within one round after the grace period of its victims.
        """
        return max(self.grace, job.grace or 0.0) + 2.0 * self.snapshot.round_seconds

    def audits(self, job: AuditedJob) -> bool:
        """Return whether a job became eligible in the span."""
        return self.since <= job.eligible < self.until


def read_export(document: Mapping[str, Any]) -> PromiseExport:
    """Read an export from its JSON.

    Raises:
        UnknownFormatError: the format is newer than this version.
        UnreadableRoundError: the document is not an export.
    """
    found = document.get("format")
    if found != FORMAT:
        raise UnknownFormatError(f"format {found!r} is not {FORMAT}")
    return read_value(PromiseExport, document)


def merged_spec(spec: ClusterSpec, vc: str) -> ClusterSpec:
    """Return a specification in which all other virtual clusters are one."""
    counts: dict[tuple[str, str], int] = {}
    pinned = {}
    for name, share in sorted(spec.virtual_clusters.items()):
        if name == vc:
            continue
        for quota in share.quotas:
            key = quota.chain, quota.level
            counts[key] = counts.get(key, 0) + quota.count
        pinned.update({f"{name}-{pin}": address for pin, address in share.pinned.items()})
    quotas = tuple(
        Quota(chain=chain, level=level, count=count) for (chain, level), count in counts.items()
    )
    own = spec.virtual_clusters.get(vc, VcSpec())
    return replace(spec, virtual_clusters={vc: own, OTHERS: VcSpec(quotas=quotas, pinned=pinned)})


def sound_node(node: NodeFacts, tenant: int) -> NodeFacts:
    """Return the node of a private cluster: healthy, and open to its tenant."""
    own = frozenset({tenant})
    tenants = own if node.tenants == own else frozenset()
    return replace(node, placeable=True, healthy=True, owner=None, tenants=tenants)
