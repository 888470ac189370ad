"""Celery tasks of the scheduling package; each calls one service."""

import logging
import time
from typing import Final

from celery import shared_task
from django.conf import settings

from scheduling import ports
from scheduling.clusters.services import nodes
from scheduling.common.on_commit import request_round_on_commit
from scheduling.core.round_result import RoundResult
from scheduling.parallelism import replanning
from scheduling.parallelism import services as parallelism
from scheduling.rounds.services import canaries, evidence, rounds
from scheduling.rounds.snapshot import Reading, RoundConfig
from scheduling.runs.services import exclusions, tuning
from scheduling.storage.opening import open_storage
from scheduling.sweeps import services as sweeps
from scheduling.what_if.services import shadows, what_if
from tenants.clock import database_now

logger = logging.getLogger(__name__)

MOST_ESTIMATING: Final = 120.0
REST: Final = 4.0


@shared_task(name="scheduling.tasks.run_round")
def run_round(cause: str = "tick", after: int | None = None) -> None:
    """Run one round; if another worker was faster, do nothing.

    Args:
        cause: cause of the request.
        after: number of rounds begun before the request; None to run in any case.
    """
    requests = ports.bound().rounds
    # A redelivered task began before its worker died, and was counted then.
    is_again = (run_round.request.delivery_info or {}).get("redelivered")
    if after is not None and not is_again and requests.is_overtaken(after):
        return
    _feed_sweeps()
    requests.begin()
    nodes.finish_drains(now=database_now())
    try:
        rounds.run_round(
            now=database_now, config=_round_config(), store=store_evidence, cause=cause
        )
    except rounds.LostRoundError as lost:
        logger.info("%s", lost)
        # The faster round may have read its snapshot before the change that requested this one.
        # Later requests were merged into this one, so no other round is queued.
        request_round_on_commit("lost")
    else:
        requests.finish()
        tuning.choose_batches(now=database_now())


@shared_task(name="scheduling.tasks.decide_shadows")
def decide_shadows(number: int) -> None:
    """Let the shadow policies decide a round that has been committed."""
    shadows.decide_shadows(
        number=number, storage=open_storage(settings.TESSERA.storage), now=database_now()
    )


@shared_task(name="scheduling.tasks.answer_what_if")
def answer_what_if(pk: int) -> None:
    """Replay past days under other policies, in a separate process."""
    logger.info("what-if %s runs in a separate process", pk)
    what_if.start_answering(project=settings.BASE_DIR)


@shared_task(name="scheduling.tasks.audit_promises")
def audit_promises() -> None:
    """Audit the sharing promise of past days, in the process of what-ifs."""
    what_if.start_answering(project=settings.BASE_DIR)


@shared_task(name="scheduling.tasks.profile_models")
def profile_models() -> None:
    """Plan the grids of new profiles, replace barred plans, and submit missing profile jobs."""
    now = database_now()
    parallelism.plan_profiles(now=now)
    replanning.replace_barred_plans(now=now)
    config = parallelism.ProfileConfig(
        images_ignored=settings.TESSERA.images == "ignore",
        host_network=settings.TESSERA.host_network == "gangs",
    )
    parallelism.submit_profiles(config=config, now=now)


def store_evidence(number: int, reading: Reading, result: RoundResult) -> tuple[str, str, int]:
    """Store a round's snapshot and decision; returns path, hash and size in bytes."""
    return evidence.store_round(
        storage=open_storage(settings.TESSERA.storage),
        number=number,
        reading=reading,
        result=result,
    )


@shared_task(name="scheduling.tasks.estimate_starts")
def estimate_starts() -> None:
    """Estimate when waiting jobs will start, from the newest round.

    Only one task runs at a time, followed by a pause four times as long. On a slow host, estimates
    become older and do not delay other tasks.
    """
    from scheduling.estimates.services import estimates  # noqa: PLC0415  brings NumPy

    requests = ports.bound().estimates
    requests.rest(MOST_ESTIMATING)
    began = time.monotonic()
    estimates.estimate_starts(config=_round_config(), now=database_now())
    requests.rest(_rest_after(began))


@shared_task(name="scheduling.tasks.estimate_new_waits")
def estimate_new_waits() -> None:
    """Estimate starts and seek remedies of jobs that have just begun to wait.

    Only one task runs at a time, with the same pause.
    """
    from scheduling.estimates.services import estimates  # noqa: PLC0415  brings NumPy

    requests = ports.bound().estimates
    requests.begin_new_waits()
    began, handled = time.monotonic(), frozenset[int]()
    try:
        handled = estimates.estimate_new_waits(config=_round_config(), now=database_now())
    finally:
        requests.finish_new_waits(rest_seconds=_rest_after(began))
    # From here on, rounds may request another round; earlier such requests were ignored.
    if handled and estimates.new_waits() - handled:
        requests.request_new_waits()


@shared_task(name="scheduling.tasks.forecast_fragmentation")
def forecast_fragmentation() -> None:
    """Forecast the stranded devices of the next hours, and moves against them."""
    from scheduling.estimates.services import fragmentation  # noqa: PLC0415  brings NumPy

    fragmentation.store_forecast(
        config=_round_config(),
        now=database_now(),
        defragmentation=settings.TESSERA.defragmentation,
    )


@shared_task(name="scheduling.tasks.mark_suspect_devices")
def mark_suspect_devices() -> None:
    """Mark the devices on which unusually many jobs of several tenants failed."""
    exclusions.mark_suspect_devices(now=database_now())


@shared_task(name="scheduling.tasks.run_canaries")
def run_canaries() -> None:
    """Record the results of canary jobs, and start those that devices wait for."""
    now = database_now()
    canaries.finish_ended(now=now)
    canaries.start_due(config=_round_config(), now=now)


def _feed_sweeps() -> None:
    try:
        sweeps.feed_sweeps()
    except Exception:
        logger.exception("no sweep jobs were released; the round continues without them")


def _rest_after(began: float) -> float:
    return min(REST * (time.monotonic() - began), MOST_ESTIMATING)


def _round_config() -> RoundConfig:
    """Build the round configuration from the settings."""
    return RoundConfig(
        round_seconds=settings.TESSERA.round_seconds,
        images_required=settings.TESSERA.images == "required",
        using=settings.SNAPSHOT_DATABASE,
    )
