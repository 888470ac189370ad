"""Forecast of stranded devices, computed in the background and stored in one row."""

import time
from dataclasses import asdict
from datetime import datetime
from typing import Final

from scheduling.common.time_limits import time_limit
from scheduling.core.forecast.fragmentation import forecast_fragmentation
from scheduling.core.simulation import SimulationSettings
from scheduling.estimates.models import FragmentationForecast
from scheduling.estimates.services.run_times import pasts_of_live_jobs, recent_run_times
from scheduling.rounds.snapshot import RoundConfig, next_round_number, take_snapshot

FUTURES: Final = 20
HOURS: Final = 12
STEP_SECONDS: Final = 1800.0
OFFSETS: Final = tuple(STEP_SECONDS * n for n in range(int(HOURS * 3600 / STEP_SECONDS) + 1))
SETTINGS: Final = SimulationSettings(horizon=OFFSETS[-1], coarse=0.02, most_waiting=200)
SECONDS: Final = 5.0
"""Maximum time of the simulated futures after the first one."""

POLICY_SECONDS: Final = 2.0


def store_forecast(
    *, config: RoundConfig, now: datetime, seconds: float = SECONDS, futures: int = FUTURES
) -> FragmentationForecast:
    """Forecast the stranded devices of the next hours, and store the forecast.

    Args:
        config: the settings of rounds.
        now: the current time.
        seconds: limit of the futures after the first one.
        futures: maximum number of futures.
    """
    number = next_round_number(config.using)
    snapshot = take_snapshot(number=number, now=now, config=config).snapshot
    deadline = time.monotonic() + seconds
    found = forecast_fragmentation(
        snapshot,
        recent_run_times(now=now),
        pasts_of_live_jobs(now=now),
        offsets=OFFSETS,
        futures=futures,
        seed=number,
        settings=SETTINGS,
        go_on=lambda: time.monotonic() < deadline,
        limit=time_limit(POLICY_SECONDS),
    )
    stored, _ = FragmentationForecast.objects.update_or_create(
        id=1, defaults={"round_number": number, "made_at": now, "result": asdict(found)}
    )
    return stored
