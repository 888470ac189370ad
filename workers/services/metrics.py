"""Points of metrics, added to the roll-ups of their series (ADR 83)."""

import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

import numpy as np
from django.db import transaction
from django.db.models import F

from workers.models import MetricBlock, MetricSeries, TrainingGoal
from workers.services.dispatch import MemberRef
from workers.services.points import MOST_NAMES, PointBatch, Sample, SeriesKey
from workers.services.rollups import BLOCK, FAN, Buckets, buckets_of, fold, pack, unpack

log = logging.getLogger(__name__)

MOST_SERIES: Final = 1024
"""Series of a job, over all its ranks."""
MOST_BLOCKS: Final = 6000
"""Full blocks of a job, some 10 KB each; above it, the oldest ones of the finest level go."""
CHECK_EVERY: Final = 16
"""Full blocks of a series between two checks of the bound."""
LONGEST_DELAY: Final = 60.0
LONGEST_PAST: Final = 400 * 86400.0


class _Place(NamedTuple):
    level: int
    number: int


@dataclass(slots=True)
class _Draft:
    """A block with its content before it is packed."""

    block: MetricBlock
    buckets: Buckets
    is_changed: bool = False


_Drafts = dict[_Place, _Draft]


@transaction.atomic
def add_points(*, rank: MemberRef, batch: PointBatch, at: datetime) -> None:
    """Add the points of a rank; those above the limits of names and series are dropped.

    Args:
        rank: the rank that reported them.
        batch: the points, by series.
        at: time of the points that have none; others are limited to the time around it.
    """
    if batch.total_steps is not None:
        TrainingGoal.objects.update_or_create(
            job_id=rank.job_id, defaults={"total_steps": batch.total_steps}
        )
    if not batch.series:
        return
    series = _series(rank, batch.series)
    opened = _open_blocks([row.pk for row in series.values()])
    changed: list[MetricBlock] = []
    for key, row in series.items():
        samples = batch.series[key]
        if not _claim(row, samples):
            log.warning("points of %s are dropped: another service added some meanwhile", row)
            continue
        buckets = buckets_of(samples, attempt=rank.attempt_number)
        _date(buckets, at.timestamp())
        changed += _packed(_append(row, opened.get(row.pk, {}), buckets))
    _write(changed)
    if any(not block.level and block.number % CHECK_EVERY == CHECK_EVERY - 1 for block in changed):
        drop_excess(rank.job_id)


def _series(
    rank: MemberRef, found: Mapping[SeriesKey, list[Sample]]
) -> dict[SeriesKey, MetricSeries]:
    """Return the rows of the series; new ones are created within the limits."""
    mine = MetricSeries.objects.filter(job_id=rank.job_id, role=rank.role, rank=rank.rank)
    rows = {SeriesKey(row.process, row.name): row for row in mine}
    if missing := [key for key in found if key not in rows]:
        every = MetricSeries.objects.filter(job_id=rank.job_id)
        names = set(every.values_list("name", flat=True))
        left = MOST_SERIES - every.count()
        for key in missing:
            if left > 0 and (key.name in names or len(names) < MOST_NAMES):
                names.add(key.name)
                left -= 1
                rows[key] = MetricSeries.objects.create(
                    job_id=rank.job_id,
                    name=key.name,
                    role=rank.role,
                    rank=rank.rank,
                    node_rank=rank.node_rank,
                    process=key.process,
                )
    return {key: rows[key] for key in found if key in rows}


def _open_blocks(series: Sequence[int]) -> dict[int, _Drafts]:
    """Return the blocks with room, by series."""
    found: dict[int, _Drafts] = defaultdict(dict)
    for block in MetricBlock.objects.filter(series_id__in=series, size__lt=BLOCK):
        place = _Place(block.level, block.number)
        found[block.series_id][place] = _Draft(block, unpack(block.content, block.size))
    return found


def _claim(row: MetricSeries, samples: Sequence[Sample]) -> bool:
    """Update the count by compare-and-set, which excludes a second writer."""
    last = samples[-1]
    return bool(
        MetricSeries.objects.filter(pk=row.pk, count=row.count).update(
            count=F("count") + len(samples),
            last=last.value if math.isfinite(last.value) else None,
            last_step=last.step,
        )
    )


def _date(buckets: Buckets, now: float) -> None:
    """Set missing times of points to the present, and limit untrusted ones."""
    time = np.nan_to_num(buckets["time"], nan=now)
    buckets["time"] = np.clip(time, now - LONGEST_PAST, now + LONGEST_DELAY)


def _append(row: MetricSeries, drafts: _Drafts, buckets: Buckets) -> Iterable[_Draft]:
    """Append points to the finest level."""
    done = 0
    while done < len(buckets):
        number, held = divmod(row.count + done, BLOCK)
        piece = buckets[done : done + BLOCK - held]
        bounds = int(piece["step"].min()), int(piece["step"].max())
        _extend(row, drafts, _Place(0, number), piece, bounds)
        done += len(piece)
    return drafts.values()


def _extend(
    row: MetricSeries, drafts: _Drafts, place: _Place, buckets: Buckets, bounds: tuple[int, int]
) -> None:
    """Append buckets to a block; when it becomes full, it is folded into the next level."""
    least, greatest = bounds
    draft = drafts.get(place)
    if draft is None:
        block = MetricBlock(
            series=row,
            job_id=row.job_id,
            level=place.level,
            number=place.number,
            least_step=least,
            greatest_step=greatest,
        )
        draft = drafts[place] = _Draft(block, buckets[:0])
    block = draft.block
    draft.buckets, draft.is_changed = np.concatenate([draft.buckets, buckets]), True
    block.least_step = min(block.least_step, least)
    block.greatest_step = max(block.greatest_step, greatest)
    if len(draft.buckets) == BLOCK:
        following = _Place(place.level + 1, place.number // FAN)
        bounds = block.least_step, block.greatest_step
        _extend(row, drafts, following, fold(draft.buckets, FAN), bounds)


def _packed(drafts: Iterable[_Draft]) -> list[MetricBlock]:
    found = []
    for draft in drafts:
        if draft.is_changed:
            draft.block.size, draft.block.content = len(draft.buckets), pack(draft.buckets)
            found.append(draft.block)
    return found


def _write(blocks: Sequence[MetricBlock]) -> None:
    """Insert or update blocks, in one statement for many."""
    for block in blocks:
        block.pk = None
    MetricBlock.objects.bulk_create(
        blocks,
        batch_size=100,
        update_conflicts=True,
        unique_fields=["series", "level", "number"],
        update_fields=["size", "least_step", "greatest_step", "content"],
    )


def drop_excess(job_id: int, *, most: int = MOST_BLOCKS) -> int:
    """Delete full blocks above the bound of a job: of the finest level first, then the oldest.

    Returns:
        Number of deleted blocks.
    """
    full = MetricBlock.objects.filter(job_id=job_id, size=BLOCK)
    excess = full.count() - most
    if excess <= 0:
        return 0
    ids = list(full.order_by("level", "pk").values_list("pk", flat=True)[:excess])
    for first in range(0, len(ids), 500):
        MetricBlock.objects.filter(pk__in=ids[first : first + 500]).delete()
    return len(ids)
