"""ASGI application: Django serves pages and REST, Channels serves /ws/."""

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
django.setup(set_prefix=False)

from channels.auth import AuthMiddlewareStack  # noqa: E402 needs the loaded applications
from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402
from django.conf import settings  # noqa: E402

from portal.live.access import own_origin  # noqa: E402
from portal.live.consumers import websocket_urlpatterns  # noqa: E402
from portal.serving import BoundedBodies, ThreadedHandler, behind_proxies  # noqa: E402

application = behind_proxies(
    ProtocolTypeRouter(
        {
            "http": BoundedBodies(ThreadedHandler()),
            "websocket": own_origin(AuthMiddlewareStack(URLRouter(websocket_urlpatterns))),
        }
    ),
    settings.TESSERA,
)
