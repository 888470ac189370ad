"""Celery's broker and the channel layer, both from one Redis address."""

from typing import Any
from urllib.parse import urlsplit


def broker_url(redis_url: str) -> str:
    """The address in Celery's spelling (a socket is ``redis+socket://`` there)."""
    parts = urlsplit(redis_url)
    if parts.scheme == "unix":
        return f"redis+socket://{parts.path}"
    return redis_url


def channel_layers(redis_url: str) -> dict[str, Any]:
    """Channels over Redis pub/sub: nothing is stored, a reconnected page fetches again."""
    if urlsplit(redis_url).scheme == "memory":
        return {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
    return {
        "default": {
            "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
            "CONFIG": {"hosts": [redis_url], "prefix": "tessera"},
        }
    }
