"""Transports of Tessera (REST, pages, live updates), its settings, and its processes."""

from portal.celery import app as celery_app

__all__ = ["celery_app"]
