"""Addresses of the websockets."""

from django.urls import path

from portal.live.consumers import LiveConsumer

websocket_urlpatterns = [path("ws/live/", LiveConsumer.as_asgi())]
