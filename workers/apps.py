"""Django application of ``workers``."""

from django.apps import AppConfig


class WorkersConfig(AppConfig):
    """Transports, dispatch, collection and reconciliation."""

    name = "workers"
    verbose_name = "Workers"

    def ready(self) -> None:
        """Connect the receivers that wake the node service."""
        from workers import receivers

        receivers.connect()
