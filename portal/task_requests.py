"""Task requests with due time and expiry in the database's time."""

from typing import Any

from celery.worker.request import Request
from django.utils import timezone

from tenants.clock import estimated_now


class DatabaseTimeRequest(Request):
    """Converts due time and expiry of a message to the time of this worker's host."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        ahead = timezone.now() - estimated_now()
        # Celery's type stubs omit these fields.
        for name in ("_eta", "_expires"):
            moment = getattr(self, name)
            if moment is not None:
                setattr(self, name, moment + ahead)
