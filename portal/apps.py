"""Django application of the portal; it connects the signals and ports of the lower packages."""

from django.apps import AppConfig


class PortalConfig(AppConfig):
    """Connects signals, ports and the English translation once all models are loaded."""

    name = "portal"
    verbose_name = "Portal"

    def ready(self) -> None:
        from portal import wiring
        from portal.i18n.language import use_source_translation

        wiring.connect()
        use_source_translation()
