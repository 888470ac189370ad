"""The scheduling package as a Django application."""

from django.apps import AppConfig


class SchedulingConfig(AppConfig):
    """Durable state around a pure core."""

    name = "scheduling"
    verbose_name = "Scheduling"
