"""Django application of the portal; it connects the signals and ports of the lower packages."""

from django.apps import AppConfig


class PortalConfig(AppConfig):
    """Connects signals and ports once all models are loaded."""

    name = "portal"
    verbose_name = "Portal"

    def ready(self) -> None:
        from portal import wiring

        wiring.connect()
