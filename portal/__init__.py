"""Transports and wiring of Tessera: settings, REST, pages, live updates, and their processes."""

from portal.celery import app as celery_app

__all__ = ["celery_app"]
