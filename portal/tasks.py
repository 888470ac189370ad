"""Periodic tasks that concern several packages, and the configured retention."""

import logging
from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any, Final

from celery import shared_task
from django.conf import settings
from django.contrib.sessions.backends.db import SessionStore

from portal.key_rotation import drop_outlived_secret_keys
from scheduling.estimates.services.corrections import prune_estimates
from scheduling.maintenance.retention import Retention, prune
from scheduling.notices.services import deliveries
from scheduling.storage.opening import open_storage
from scheduling.usage.services import usage
from scheduling.what_if.services.what_if import forget_what_ifs
from tenants import audit_chain
from tenants.audit import Actor
from tenants.clock import database_now
from tenants.services import forget_attempts, forget_password_links, prune_forms
from tenants.services.sign_in import KNOWN_FOR
from workers.conf import worker_settings
from workers.services import retention as workers_retention
from workers.services import telemetry
from workers.services.retention import WorkerRetention

logger = logging.getLogger(__name__)
KEEP_DELIVERIES: Final = timedelta(days=30)


def retention() -> Retention:
    set_here: dict[str, Any] = _ages(Retention)
    if settings.TESSERA.keep_round_bytes is not None:
        set_here["round_bytes"] = settings.TESSERA.keep_round_bytes
    return replace(Retention(), **set_here)


def node_retention() -> WorkerRetention:
    return replace(WorkerRetention(), **_ages(WorkerRetention))


def age(days: float) -> timedelta | None:
    """Convert days to an age; negative days mean no limit (None)."""
    return None if days < 0 else timedelta(days=days)


def _ages(values: type[Retention] | type[WorkerRetention]) -> dict[str, timedelta | None]:
    chosen: Mapping[str, float] = settings.TESSERA.keep_days
    names = {field.name for field in fields(values)}
    return {name: age(days) for name, days in chosen.items() if name in names}


@shared_task(name="portal.tasks.run_maintenance")
def run_maintenance() -> None:
    """Delete rows past their retention, and aggregate telemetry into longer spans; idempotent."""
    now = database_now()
    telemetry.roll_up(now=now)
    # Logs first: deleting the jobs deletes the rows with the paths of their logs.
    workers_retention.prune(
        retention=node_retention(),
        storage=worker_settings().storage,
        now=now,
    )
    prune(
        retention=retention(),
        storage=open_storage(settings.TESSERA.storage),
        now=now,
        actor=Actor.system("housekeeping"),
    )
    forget_what_ifs(now=now)
    prune_estimates(now=now)
    deliveries.prune(before=now - KEEP_DELIVERIES)
    prune_forms(now=now)
    forget_password_links(now=now)
    forget_attempts(now=now)
    SessionStore.clear_expired()
    drop_outlived_secret_keys(before=now - KNOWN_FOR, actor=Actor.system("housekeeping"))
    # With log files on other hosts, an audit finds an audit chain that was rewritten later.
    logger.info("audit head %s", audit_chain.head())


@shared_task(name="portal.tasks.sum_up_usage")
def sum_up_usage() -> None:
    """Add usage since the last call to the daily sums, and close past months; idempotent."""
    now = database_now()
    usage.sum_usage(now=now)
    usage.close_months(now=now)
