"""Requests of tasks: due time and expiry are in the database's time, not in the host's."""

from typing import Any

from celery.worker.request import Request
from django.utils import timezone

from tenants.clock import estimated_now


class DatabaseTimeRequest(Request):
    """Translates due time and expiry of a message to the time of this worker's host."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        ahead = timezone.now() - estimated_now()
        # Celery's types omit the fields.
        for name in ("_eta", "_expires"):
            moment = getattr(self, name)
            if moment is not None:
                setattr(self, name, moment + ahead)
