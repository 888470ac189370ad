"""Forecast of stranded devices and moves against them, computed in the background.

Both are stored in one row.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

from scheduling.common.time_limits import time_limit
from scheduling.core.forecast.fragmentation import forecast_fragmentation
from scheduling.core.simulation import SimulationSettings
from scheduling.estimates.models import FragmentationForecast
from scheduling.estimates.services.moves import (
    SYSTEM,
    find_moves,
    order_moves,
    recent_submissions,
)
from scheduling.estimates.services.run_times import pasts_of_live_jobs, recent_run_times
from scheduling.rounds.snapshot import RoundConfig, next_round_number, take_snapshot
from tenants.clock import database_now
from tenants.errors import ConflictError

logger = logging.getLogger(__name__)

FUTURES: Final = 20
HOURS: Final = 12
STEP_SECONDS: Final = 1800.0
OFFSETS: Final = tuple(STEP_SECONDS * n for n in range(int(HOURS * 3600 / STEP_SECONDS) + 1))
SETTINGS: Final = SimulationSettings(horizon=OFFSETS[-1], coarse=0.02, most_waiting=200)
SECONDS: Final = 5.0
"""Maximum time of the simulated futures after the first one."""

MOVE_SECONDS: Final = 20.0
"""Maximum time of the search for moves."""

CARRY_OUT: Final = "carry-out"

POLICY_SECONDS: Final = 2.0


def store_forecast(
    *,
    config: RoundConfig,
    now: datetime,
    defragmentation: str,
    seconds: float = SECONDS,
    futures: int = FUTURES,
    find: Callable[..., list[dict[str, Any]]] = find_moves,
) -> FragmentationForecast:
    """Forecast the stranded devices of the next hours, and store the forecast with moves.

    Args:
        defragmentation: whether to search for moves: ``off``, ``propose`` or ``carry-out``, which
            preempts the jobs of the best proposal.
        config: the settings of rounds.
        now: the current time.
        seconds: limit of the futures after the first one.
        futures: maximum number of futures.
        find: the search for moves.
    """
    number = next_round_number(config.using)
    snapshot = take_snapshot(number=number, now=now, config=config).snapshot
    times, pasts = recent_run_times(now=now), pasts_of_live_jobs(now=now)
    recent = recent_submissions(now=now)
    deadline = time.monotonic() + seconds
    found = forecast_fragmentation(
        snapshot,
        times,
        pasts,
        recent,
        offsets=OFFSETS,
        futures=futures,
        seed=number,
        settings=SETTINGS,
        go_on=lambda: time.monotonic() < deadline,
        limit=time_limit(POLICY_SECONDS),
    )
    moves = (
        []
        if defragmentation == "off"
        else find(snapshot, times, pasts, recent, seconds=MOVE_SECONDS)
    )
    stored, _ = FragmentationForecast.objects.update_or_create(
        id=1,
        defaults={
            "round_number": number,
            "made_at": now,
            "result": asdict(found),
            "moves": moves,
        },
    )
    if defragmentation == CARRY_OUT and moves:
        try:
            order_moves(moves[0], actor=SYSTEM, now=database_now())
        except ConflictError as error:
            logger.info("the best moves were not carried out: %s", error)
    return stored
