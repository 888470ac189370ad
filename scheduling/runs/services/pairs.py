"""Measured paces of jobs that share a device: at most one observation of a pair in a minute."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from django.db import transaction

from scheduling.core.round.declared_terms import APPLICATION_LABEL
from scheduling.core.sharing.pairs import NOT_OBSERVED, Paces, PairRecord, application_of
from scheduling.jobs.models import Job
from scheduling.runs.models import PairPace

EVERY: Final = timedelta(seconds=60)
KEPT: Final = timedelta(days=90)
MOST_PAIRS: Final = 20_000


class PairObservation(NamedTuple):
    """Paces of a holder and its only guest on a device, by job IDs."""

    holder: int
    guest: int
    device_type: str
    paces: Paces


@transaction.atomic
def observe_pairs(observations: Iterable[PairObservation], *, now: datetime) -> int:
    """Add observations to the means of their pairs; returns how many were added.

    A pair that was observed less than a minute ago is skipped. Pairs without an observation for 90
    days are deleted. If 20,000 pairs exist, no new one is added.
    """
    found = list(observations)
    names = _applications({job for one in found for job in (one.holder, one.guest)})
    wanted = {
        (names[one.holder], names[one.guest], one.device_type): one.paces
        for one in found
        if one.holder in names and one.guest in names
    }
    rows = PairPace.objects.select_for_update().filter(holder__in={key[0] for key in wanted})
    known = {(row.holder, row.guest, row.device_type): row for row in rows.order_by("id")}
    added = []
    for key, paces in wanted.items():
        row = known.get(key)
        if row is not None and now - row.at < EVERY:
            continue
        before = NOT_OBSERVED if row is None else row.record
        after = before.observe(paces)
        if after is not before:
            added.append((key, after))
    if any(key not in known for key, _ in added):
        PairPace.objects.filter(at__lt=now - KEPT).delete()
        if PairPace.objects.count() >= MOST_PAIRS:
            added = [one for one in added if one[0] in known]
    PairPace.objects.bulk_create(
        [_row(key, record, now) for key, record in added],
        update_conflicts=True,
        unique_fields=["holder", "guest", "device_type"],
        update_fields=["holder_pace", "guest_pace", "observations", "at"],
    )
    return len(added)


def _applications(jobs: set[int]) -> dict[int, str]:
    rows = Job.objects.unscoped().filter(pk__in=jobs)
    return {
        pk: application_of(tenant, labels.get(APPLICATION_LABEL), name)
        for pk, tenant, labels, name in rows.values_list("id", "tenant_id", "labels", "name")
    }


def _row(key: tuple[str, str, str], record: PairRecord, now: datetime) -> PairPace:
    holder, guest, device_type = key
    return PairPace(
        holder=holder,
        guest=guest,
        device_type=device_type,
        holder_pace=record.holder,
        guest_pace=record.guest,
        observations=record.observations,
        at=now,
    )
