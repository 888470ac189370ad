"""Start estimates for pages and REST, and their calibration."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from scheduling.clusters.models.virtual_clusters import VirtualCluster
from scheduling.core.forecast import is_open
from scheduling.core.forecast.calibration import Basis, pinball
from scheduling.core.messages import message, sentence
from scheduling.estimates.models import EstimateRecord, FragmentationForecast
from tenants.roles import Permission
from tenants.viewers import Viewer
from tessera.messages import Sentence

MOST_RECORDS: Final = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Eta:
    """The start estimate of a waiting job.

    Attributes:
        p10: with a probability of 10 %, the job starts before this time.
        p90: with a probability of 10 %, the job starts after this time.
        made_at: time of the estimate, after round ``round_number``.
        basis: source of the estimate, a ``Basis``.
        opens_at: earliest possible start; None if no gate is closed.
    """

    p10: datetime
    p50: datetime
    p90: datetime
    made_at: datetime
    round_number: int
    basis: str = Basis.FORECAST.value
    opens_at: datetime | None = None

    def seconds(self, now: datetime) -> tuple[float, float, float]:
        """Return p10, p50 and p90 in seconds from ``now``, at least 0."""
        p10, p50, p90 = (
            max(0.0, (at - now).total_seconds()) for at in (self.p10, self.p50, self.p90)
        )
        return p10, p50, p90

    def opens_in(self, now: datetime) -> float:
        """Return the seconds until the gate opens, or 0 if no gate is closed."""
        if self.opens_at is None:
            return 0.0
        return max(0.0, (self.opens_at - now).total_seconds())

    @property
    def is_open(self) -> bool:
        """Return whether p90 is beyond the horizon of estimates, so that the range has no end."""
        return is_open((self.p90 - self.made_at).total_seconds())


def eta_of(columns: Mapping[str, Any]) -> Eta | None:
    """Return the estimate from columns named as in ``StartEstimate``, or None if unknown."""
    p10, p50, p90 = (columns.get(name) for name in ("p10", "p50", "p90"))
    if p10 is None or p50 is None or p90 is None:
        return None
    return Eta(
        p10=p10,
        p50=p50,
        p90=p90,
        made_at=columns["made_at"],
        round_number=columns["round_number"],
        basis=columns.get("basis") or Basis.FORECAST.value,
        opens_at=columns.get("opens_at"),
    )


def no_estimate_text(unlimited: int) -> Sentence:
    """Return the reason of a missing start estimate.

    Args:
        unlimited: number of running jobs without a time limit that the job waits for.
    """
    if not unlimited:
        return sentence(message("estimate-varies"))
    return sentence(message("estimate-unlimited", n=unlimited))


def no_estimate_of(columns: Mapping[str, Any]) -> str:
    """Return the reason of a missing estimate by its columns, or an empty text."""
    if columns.get("basis") == Basis.FEW:
        return sentence(message("estimate-few-waits"))
    if not columns.get("unreliable"):
        return ""
    return no_estimate_text(len(columns.get("unlimited") or ()))


def is_of(amendments: int, columns: Mapping[str, Any]) -> bool:
    """Return whether an estimate belongs to a job with this number of amendments."""
    return columns.get("amendments") == amendments


def holds_for(reason_code: str, columns: Mapping[str, Any]) -> bool:
    """Return whether the steps were sought for the current reason of the job."""
    return bool(columns.get("sought")) and columns.get("sought_for") == reason_code


_NEEDS_FREE: Final = frozenset({"devices", "instances", "level"})
"""Kinds of steps that start a job on free devices of its virtual cluster."""


def steps_left(
    steps: Iterable[Mapping[str, Any]], reason: Mapping[str, Any]
) -> tuple[Mapping[str, Any], ...]:
    """Return the steps that the newest number of free devices does not rule out.

    Args:
        steps: the steps found after an earlier round.
        reason: the stored reason of the newest round.
    """
    if reason.get("free") != 0:
        return tuple(steps)
    return tuple(step for step in steps if step["kind"] not in _NEEDS_FREE)


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateAccuracy:
    """Calibration of the estimates of one virtual cluster.

    Attributes:
        estimates: number of estimates with a known start.
        inside: fraction of starts between p10 and p90.
        below: fraction of starts before p10.
        above: fraction of starts after p90.
        loss: mean pinball loss in seconds.
        plain_loss: mean pinball loss of constant quantiles, computed from all these waits.
        waiting: number of estimates without a known start.
        withheld: number of estimates that were too wide to be shown; other fields exclude them.
    """

    virtual_cluster: str
    estimates: int
    inside: float
    below: float
    above: float
    loss: float
    plain_loss: float
    waiting: int
    withheld: int
    points: Sequence[tuple[datetime, float, float, float, float]] = ()


def calibration(
    viewer: Viewer, *, now: datetime, span: timedelta = timedelta(days=30)
) -> tuple[EstimateAccuracy, ...]:
    """Return the calibration of each virtual cluster whose jobs the viewer may see."""
    names = {
        pk: name
        for pk, name, tenant in VirtualCluster.objects.visible_to(viewer)
        .order_by("name")
        .values_list("id", "name", "tenant_id")
        if viewer.can(Permission.VIEW_JOBS, tenant)
    }
    rows: dict[int, list[tuple[Any, ...]]] = {pk: [] for pk in names}
    for row in (
        EstimateRecord.objects.filter(virtual_cluster__in=list(names), made_at__gt=now - span)
        .order_by("-made_at")
        .values_list(
            "virtual_cluster_id", "made_at", "p10", "p50", "p90", "wait", "closed_at", "shown"
        )[:MOST_RECORDS]
    ):
        rows[row[0]].append(row[1:])
    return tuple(_of_vc(names[pk], found) for pk, found in rows.items() if found)


def _of_vc(name: str, records: list[tuple[Any, ...]]) -> EstimateAccuracy:
    rows = [record[:-1] for record in records if record[-1]]
    known = [row for row in rows if row[4] is not None]
    waits = sorted(row[4] for row in known)
    number = max(len(known), 1)
    plain = [_at(waits, level) for level in (0.1, 0.5, 0.9)] if waits else [0.0, 0.0, 0.0]
    below = sum(wait < p10 for _at_, p10, _p50, _p90, wait, _closed in known)
    above = sum(wait > p90 for _at_, _p10, _p50, p90, wait, _closed in known)
    return EstimateAccuracy(
        virtual_cluster=name,
        estimates=len(known),
        inside=(len(known) - below - above) / number,
        below=below / number,
        above=above / number,
        loss=sum(pinball((p10, p50, p90), wait) for _, p10, p50, p90, wait, _ in known) / number,
        plain_loss=sum(pinball(plain, wait) for *_, wait, _ in known) / number,
        waiting=sum(row[4] is None and row[5] is None for row in rows),
        withheld=len(records) - len(rows),
        points=tuple((at, p10, p50, p90, wait) for at, p10, p50, p90, wait, _ in known[::-1]),
    )


def _at(ordered: Sequence[float], level: float) -> float:
    return ordered[min(int(level * len(ordered)), len(ordered) - 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainFragmentationView:
    """Stranded devices of one chain; each value is a list of [p10, p50, p90] by time.

    Attributes:
        devices: number of devices of the chain.
        idle: idle devices.
        by_size: gang size in devices, and stranded devices.
        by_level: cell type, devices of a cell, and stranded devices.
    """

    chain: str
    device_type: str
    devices: int
    idle: Sequence[Sequence[float]]
    by_size: tuple[tuple[int, Sequence[Sequence[float]]], ...]
    by_level: tuple[tuple[str, int, Sequence[Sequence[float]]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentationView:
    """The newest stored forecast of stranded devices.

    Attributes:
        made_at: time of the forecast; None before the first one.
        offsets: times in seconds after ``made_at``.
        futures: number of simulated futures.
    """

    made_at: datetime | None
    offsets: tuple[float, ...] = ()
    futures: int = 0
    chains: tuple[ChainFragmentationView, ...] = ()


def fragmentation_view(viewer: Viewer) -> FragmentationView:
    """Return the newest forecast of stranded devices; it contains no tenants and jobs.

    Raises:
        ForbiddenError: the viewer may not see the cluster.
    """
    viewer.require(Permission.VIEW_CLUSTER, what=sentence("the-cluster-state"))
    stored = FragmentationForecast.objects.first()
    if stored is None:
        return FragmentationView(made_at=None)
    result = stored.result
    return FragmentationView(
        made_at=stored.made_at,
        offsets=tuple(result["offsets"]),
        futures=result["futures"],
        chains=tuple(_chain_view(chain) for chain in result["chains"]),
    )


def _chain_view(chain: Mapping[str, Any]) -> ChainFragmentationView:
    sizes = {int(size): bands for size, bands in chain["by_size"].items()}
    return ChainFragmentationView(
        chain=chain["chain"],
        device_type=chain["leaf_type"],
        devices=chain["devices"],
        idle=chain["idle"],
        by_size=tuple((size, sizes[size]) for size in sorted(sizes)),
        by_level=tuple(
            (name, devices, bands)
            for (name, devices), bands in zip(chain["levels"], chain["by_level"], strict=True)
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveView:
    """One move of a proposal.

    Attributes:
        lost: seconds of work since its last checkpoint.
        restart: seconds of its next start, and of its stored state.
        before: addresses of its devices.
        after: addresses of its devices in a simulated future; empty if it waits there.
    """

    job_id: int
    devices: int
    lost: float
    restart: float
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MovesView:
    """Moves with which a waiting job starts earlier.

    Attributes:
        round_number: round of the forecast.
        job_id: the waiting job.
        gain, cost: mean device-seconds over the futures.
        sure: share of the futures in which the gain exceeds the cost.
        after: addresses of the devices of the waiting job in a simulated future.
    """

    round_number: int
    job_id: int
    devices: int
    gain: float
    cost: float
    sure: float
    futures: int
    after: tuple[str, ...]
    moves: tuple[MoveView, ...]


def moves_view(viewer: Viewer) -> tuple[MovesView, ...]:
    """Return the proposed moves of the newest forecast.

    Raises:
        ForbiddenError: the viewer may not manage nodes; moves contain jobs of all tenants.
    """
    viewer.require(Permission.MANAGE_NODES, what=sentence("moves-of-jobs"))
    stored = FragmentationForecast.objects.first()
    if stored is None:
        return ()
    return tuple(
        MovesView(
            round_number=stored.round_number,
            job_id=one["job_id"],
            devices=one["devices"],
            gain=one["gain"],
            cost=one["cost"],
            sure=one["sure"],
            futures=one["futures"],
            after=tuple(one["after"]),
            moves=tuple(
                MoveView(
                    job_id=move["job_id"],
                    devices=move["devices"],
                    lost=move["lost"],
                    restart=move["restart"],
                    before=tuple(move["before"]),
                    after=tuple(move["after"]),
                )
                for move in one["moves"]
            ),
        )
        for one in stored.moves
    )
