"""The private networks that this installation allows for webhooks."""

from django.conf import settings

from scheduling.notices.services.addresses import Network, read_networks


def hook_networks() -> tuple[Network, ...]:
    """Return the networks of ``TESSERA_HOOK_NETWORKS``."""
    return read_networks(settings.TESSERA.hook_networks)
