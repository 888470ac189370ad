"""The private networks that this installation lets webhooks be in."""

from django.conf import settings

from scheduling.notices.services.addresses import Network, read_networks


def hook_networks() -> tuple[Network, ...]:
    """Those of ``TESSERA_HOOK_NETWORKS``."""
    return read_networks(settings.TESSERA.hook_networks)
