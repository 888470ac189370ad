"""The ASGI application: Django for pages and REST, Channels for /ws/."""

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")

from portal.serving import threaded_application

django_application = threaded_application()

from channels.auth import AuthMiddlewareStack  # noqa: E402 needs the loaded applications
from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402
from django.conf import settings  # noqa: E402

from portal.bodies import BoundedBodies  # noqa: E402 likewise
from portal.live.origins import own_origin  # noqa: E402 likewise
from portal.live.routing import websocket_urlpatterns  # noqa: E402
from portal.proxies import behind_proxies  # noqa: E402

application = behind_proxies(
    ProtocolTypeRouter(
        {
            "http": BoundedBodies(django_application),
            "websocket": own_origin(AuthMiddlewareStack(URLRouter(websocket_urlpatterns))),
        }
    ),
    settings.TESSERA,
)
