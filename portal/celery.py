"""Celery application with three queues, a static beat schedule, and no result backend."""

import os
from datetime import datetime
from typing import Any, Final

from celery import Celery, Task
from celery.signals import task_prerun, worker_process_init, worker_ready

from portal.memory import check_connections, keep_connections, settle
from tenants.clock import estimated_now

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
# Django's checks load all pages and REST, which workers do not need; ``make check`` runs them.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")

ROUNDS_QUEUE: Final = "rounds"
NODES_QUEUE: Final = "nodes"
DEFAULT_QUEUE: Final = "default"


class _App(Celery):
    """Celery application with the database's clock, so that hosts agree when a task is due."""

    def now(self) -> datetime:
        return estimated_now()


class _Task(Task[Any, Any]):
    abstract = True
    Request = "portal.task_requests:DatabaseTimeRequest"


app = _App("tessera", task_cls=_Task)
app.config_from_object("django.conf:settings", namespace="CELERY")
app.conf.update(
    task_ignore_result=True,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_default_queue=DEFAULT_QUEUE,
    task_routes={
        "scheduling.tasks.run_round": {"queue": ROUNDS_QUEUE},
        "workers.tasks.*": {"queue": DEFAULT_QUEUE},
    },
    worker_prefetch_multiplier=1,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    timezone="UTC",
)
app.autodiscover_tasks()
# Given by name, so that only workers import the module.
app.steps["worker"].add("portal.heartbeats:HeartbeatStep")
app.steps["worker"].add("workers.celery_steps:NodeServiceStep")
for started in (worker_process_init, worker_ready):
    started.connect(settle)
    started.connect(keep_connections)
task_prerun.connect(check_connections)
