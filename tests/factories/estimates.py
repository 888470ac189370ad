"""Stored start estimates for given waits, instead of simulated futures."""

from datetime import datetime

from scheduling.core.forecast.futures import Futures
from scheduling.core.round.decide import decide
from scheduling.estimates.services.estimates import Budget, EstimateRows
from scheduling.estimates.services.run_times import pasts_of_live_jobs
from scheduling.jobs.models import Job
from scheduling.rounds.snapshot import next_round_number, take_snapshot
from tests.factories.scheduling import CONFIG

NO_SEARCH = Budget(walking=0.0, seeking=-1.0)


def store_waits(waits: tuple[float, ...], *, of: Job, now: datetime) -> int:
    """Store the estimate for waits in seconds, one for each future; returns the number stored."""
    reading = take_snapshot(number=next_round_number(CONFIG.using), now=now, config=CONFIG)
    rows = EstimateRows(
        reading,
        Futures(waits={of.pk: waits}, tried=len(waits)),
        NO_SEARCH,
        now,
        None,
        amended={},
        pasts=pasts_of_live_jobs(now=now),
    )
    rows.store(decide(reading.snapshot, trials=0))
    return rows.estimated
