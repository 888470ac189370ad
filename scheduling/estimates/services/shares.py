"""Explained shares for a viewer: now from the next decision, and over a span from stored rounds.

Samples of a span are at multiples of its step, so that later requests find them in the cache.
"""

import math
import time
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from threading import Lock
from typing import Final

from django.db.models import F, Q

from scheduling.clusters.models import VirtualCluster
from scheduling.core.cells import ClusterSpec
from scheduling.core.explanations.shares import (
    COMPETING,
    ShareMoment,
    TenantShare,
    Totals,
    VcShare,
    explain_shares,
    mean_shares,
)
from scheduling.core.messages import sentence
from scheduling.core.round.stored import UnreadableRoundError, read_stored
from scheduling.enums import LeaseKind
from scheduling.estimates.services.cached_decision import standing_now
from scheduling.jobs.models import Job
from scheduling.rounds.models import Round
from scheduling.rounds.services.evidence import read_round
from scheduling.rounds.snapshot import RoundConfig
from scheduling.runs.models import Lease
from scheduling.storage.base import FileStorage
from tenants.roles import Permission
from tenants.viewers import Viewer

SPANS: Final[Mapping[str, timedelta]] = {
    "1h": timedelta(hours=1),
    "1d": timedelta(days=1),
    "7d": timedelta(days=7),
}
NOW: Final = "now"
SAMPLES: Final = 48
SECONDS: Final = 3.0
"""Maximum time for reading stored rounds in one request."""

TOLERANCE: Final = 1e-6
_CACHED: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SumCheck:
    """Two numbers of devices that must be equal.

    Attributes:
        name: ``weights``, ``fair``, ``devices``, ``borrowed``, ``requested`` or ``lent``; for
            ``lent``, the left number must not exceed the right one.
    """

    name: str
    left: float
    right: float

    @property
    def holds(self) -> bool:
        """Whether the numbers agree."""
        difference = self.left - self.right
        limit = TOLERANCE * max(1.0, abs(self.right))
        return difference <= limit if self.name == "lent" else abs(difference) <= limit


@dataclass(frozen=True, slots=True, kw_only=True)
class SharesView:
    """The shares that a viewer may see, and totals of all tenants.

    Attributes:
        since, until: the span; equal for the present.
        samples: number of times of which the numbers are means; 0 without a stored round.
        expected: number of samples of the span.
        vcs: name and share of each visible virtual cluster, by name.
        tenants: name and share of each visible tenant, by name.
        checks: sums over all tenants, and over the visible ones.
    """

    span: str
    since: datetime
    until: datetime
    samples: int
    expected: int
    vcs: tuple[tuple[str, VcShare], ...] = ()
    tenants: tuple[tuple[str, TenantShare], ...] = ()
    totals: Totals | None = None
    checks: tuple[SumCheck, ...] = ()


def shares_view(
    viewer: Viewer, span: str, *, config: RoundConfig, storage: FileStorage, now: datetime
) -> SharesView:
    """Return the explained shares of the virtual clusters whose jobs the viewer may see.

    Args:
        viewer: the reader.
        span: ``now``, or a key of ``SPANS``.
        config: the settings of rounds.
        storage: has the files of rounds.
        now: the current time.

    Raises:
        ForbiddenError: the viewer may see no jobs.
    """
    if not viewer.can_somewhere(Permission.VIEW_JOBS):
        viewer.require(Permission.VIEW_JOBS, what=sentence("the-shares"))
    if span == NOW:
        standing = standing_now(config=config, now=now)
        moments = [explain_shares(standing.snapshot, standing.result)]
        since = until = now
        expected = 1
    else:
        since, until, moments = _sampled(SPANS[span], storage=storage, now=now)
        expected = SAMPLES
    found = SharesView(
        span=span, since=since, until=until, samples=len(moments), expected=expected
    )
    return _visible(viewer, found, mean_shares(moments)) if moments else found


def _visible(viewer: Viewer, found: SharesView, moment: ShareMoment) -> SharesView:
    rows = [
        (name, pk)
        for pk, name, tenant in VirtualCluster.objects.visible_to(viewer)
        .filter(pk__in=list(moment.vcs))
        .values_list("id", "name", "tenant_id")
        if viewer.can(Permission.VIEW_JOBS, tenant)
    ]
    vcs = tuple((name, moment.vcs[pk]) for name, pk in sorted(rows))
    ids = {share.tenant for _, share in vcs}
    shares = {viewer.name_of(one): moment.tenants[one] for one in ids & moment.tenants.keys()}
    return replace(
        found,
        vcs=vcs,
        tenants=tuple(sorted(shares.items(), key=itemgetter(0))),
        totals=moment.totals,
        checks=sum_checks(moment, ids),
    )


def sum_checks(moment: ShareMoment, tenants: Collection[int]) -> tuple[SumCheck, ...]:
    """Compare the shares with the weights and totals of all tenants.

    Args:
        moment: the shares.
        tenants: tenants of whose jobs the requested devices are compared.
    """
    totals, every = moment.totals, moment.tenants.values()
    competing = sum(
        vc.waiting.get(limit, 0.0)
        for vc in moment.vcs.values()
        if vc.tenant in tenants
        for limit in COMPETING
    )
    own = [moment.tenants[tenant] for tenant in tenants if tenant in moment.tenants]
    held = totals.used + totals.borrowed + totals.idle + totals.unusable
    return (
        SumCheck(name="weights", left=math.fsum(one.weight for one in every), right=totals.weight),
        SumCheck(name="fair", left=math.fsum(one.fair for one in every), right=totals.fair),
        SumCheck(name="devices", left=held, right=totals.devices),
        SumCheck(
            name="borrowed", left=math.fsum(one.borrowed for one in every), right=totals.borrowed
        ),
        SumCheck(
            name="requested",
            left=math.fsum(one.borrowed for one in own) + competing,
            right=math.fsum(one.requested for one in own),
        ),
        SumCheck(name="lent", left=totals.lent, right=totals.borrowed),
    )


def _sampled(
    span: timedelta, *, storage: FileStorage, now: datetime
) -> tuple[datetime, datetime, list[ShareMoment]]:
    """Explain the shares at even times of a span, until the time limit of a request."""
    step = span.total_seconds() / SAMPLES
    last = math.floor(now.timestamp() / step)
    times = [step * (last - back) for back in range(SAMPLES)]
    deadline = time.monotonic() + SECONDS
    found: dict[float, ShareMoment] = {}
    for at in _spread(times):
        if time.monotonic() > deadline:
            break
        moment = _CACHE.at(storage, at)
        if moment is not None:
            found[at] = moment
    ordered = [found[at] for at in sorted(found)]
    since = datetime.fromtimestamp(times[-1], tz=UTC)
    return since, datetime.fromtimestamp(times[0], tz=UTC), ordered


def _spread(times: list[float]) -> list[float]:
    """Return times in an order of which each beginning is spread over the span."""
    bits = len(times).bit_length()
    reverse = sorted(range(len(times)), key=lambda n: int(f"{n:0{bits}b}"[::-1], 2))
    return [times[place] for place in reverse]


class _Cache:
    """Explained shares of past times; the past does not change."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[FileStorage, float], ShareMoment] = OrderedDict()
        self._spec: ClusterSpec | None = None
        self._lock = Lock()

    def at(self, storage: FileStorage, at: float) -> ShareMoment | None:
        """Return the shares at a time, or None if no round before it is stored."""
        with self._lock:
            known = self._known.get((storage, at))
        if known is None:
            known = self._read(storage, at)
            if known is not None:
                with self._lock:
                    self._known[storage, at] = known
                    if len(self._known) > _CACHED:
                        self._known.popitem(last=False)
        return known

    def _read(self, storage: FileStorage, at: float) -> ShareMoment | None:
        when = datetime.fromtimestamp(at, tz=UTC)
        stored = (
            Round.objects.exclude(snapshot_path="")
            .filter(started_at__lte=when)
            .order_by("-number")
            .first()
        )
        if stored is None:
            return None
        try:
            snapshot, result = read_stored(read_round(storage=storage, stored=stored))
        except (FileNotFoundError, UnreadableRoundError, ValueError):
            return None  # pruned meanwhile, or damaged: other rounds are still valid
        # One object for equal cells: their topology is built once for it.
        if snapshot.spec == self._spec:
            snapshot = replace(snapshot, spec=self._spec)
        self._spec = snapshot.spec
        queued = [job.id for job in snapshot.queued]
        jobs = {job.id for job in snapshot.holding} | {start.job_id for start in result.starts}
        gone = jobs - _holders(when)
        gone |= set(
            Job.objects.unscoped()
            .filter(pk__in=queued, finished_at__lte=when)
            .values_list("id", flat=True)
        )
        return explain_shares(snapshot, result, gone=gone, at=at)


_CACHE: Final = _Cache()


def _holders(when: datetime) -> set[int]:
    """Return the jobs that held devices at a time."""
    rows = (
        # The expression makes the database use the index by end, as for the usage.
        Lease.objects.alias(begun=F("taken_at"))
        .filter(Q(released_at=None) | Q(released_at__gt=when), begun__lte=when)
        .exclude(kind=LeaseKind.GUEST)
        .order_by()
    )
    return set(rows.values_list("job_id", flat=True).distinct())
