"""The portal as a Django application; connects signals and ports of the rooms below."""

from django.apps import AppConfig


class PortalConfig(AppConfig):
    """Wires signals of the lower rooms to broker and channel layer once all models are loaded."""

    name = "portal"
    verbose_name = "Portal"

    def ready(self) -> None:
        from portal import wiring

        wiring.connect()
