"""Celery tasks of the workers; each calls a service."""

import threading
from typing import Final

from celery import shared_task
from django.conf import settings
from django.utils.module_loading import import_string

from scheduling.clusters.models import Node
from scheduling.notices.services import outbox, quotas
from scheduling.notices.services.addresses import read_networks
from scheduling.usage.services.fleet import record_sample
from tenants.clock import database_now
from workers import early_stops
from workers.outbound.delivering import Outbound, deliver
from workers.services import device_use, disks, telemetry

_ONE_PASS: Final = threading.Lock()
"""Time limit of one pass: receivers may be slow, and other tasks need the threads."""


@shared_task(name="workers.tasks.notify")
def notify() -> None:
    """Create and send due notifications; one pass at a time."""
    if not _ONE_PASS.acquire(blocking=False):
        return
    try:
        _notify()
    finally:
        _ONE_PASS.release()


def _notify() -> None:
    outbound = current_outbound()
    outbox.create_deliveries(
        now=database_now(), sends_mail=bool(outbound.sender), base_url=outbound.base_url
    )
    deliver(outbound, now=database_now)


@shared_task(name="workers.tasks.look_at_idling")
def look_at_idling() -> None:
    """Warn and stop jobs with idle devices, by their policies."""
    device_use.look_at_idling(now=database_now())


@shared_task(name="workers.tasks.end_losing_runs")
def end_losing_runs() -> None:
    """End runs of sweeps early, by the rules of the sweeps."""
    early_stops.end_losing_runs(now=database_now())


@shared_task(name="workers.tasks.sum_up_use")
def sum_up_use() -> None:
    """Sum up the device use of running jobs whose policies read it."""
    device_use.sum_up_use(now=database_now())


@shared_task(name="workers.tasks.look_at_quotas")
def look_at_quotas() -> None:
    """Record quotas that have reached 80 or 100 percent."""
    quotas.look_at_quotas(now=database_now())


@shared_task(name="workers.tasks.look_at_disks")
def look_at_disks() -> None:
    """Notify admins of hosts whose data directory is almost full."""
    disks.look_at_hosts(now=database_now())


@shared_task(name="workers.tasks.record_fleet")
def record_fleet() -> None:
    """Add the present state of the fleet to its history."""
    now = database_now()
    nodes = Node.objects.filter(removed_at=None).values_list("id", flat=True)
    readings = telemetry.current_readings(node_ids=list(nodes), now=now)
    busy = {node_id: reading["utilisation"] for node_id, reading in readings.items()}
    record_sample(now=now, busy=busy)


def current_outbound() -> Outbound:
    """Return the settings of this installation's deliveries."""
    environment = settings.TESSERA
    return Outbound(
        networks=read_networks(environment.hook_networks),
        sender=settings.DEFAULT_FROM_EMAIL if environment.email_url else "",
        base_url=environment.public_url.rstrip("/"),
        letter=import_string(settings.MAIL_LETTER),
    )
