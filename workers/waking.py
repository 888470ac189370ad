"""Wake-ups of node services when there are directives: hints that may be lost."""

import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterable
from functools import cache
from typing import Final

import redis
from django.conf import settings

from workers import redis_address

log = logging.getLogger(__name__)

CHANNEL: Final = "tessera:orders"
PUBLISH_SECONDS: Final = 0.5

Listener = Callable[[frozenset[int]], frozenset[int]]
"""Function that receives the nodes with directives, and returns those managed here."""

_lock = threading.Lock()
_listeners: list[Listener] = []


@cache
def origin() -> str:
    """Return the name of this process, to ignore its own messages."""
    return f"{os.getpid()}-{uuid.uuid4().hex[:8]}"


def add_listener(listener: Listener) -> None:
    """Call ``listener`` with node ids, in the thread that has committed."""
    with _lock:
        _listeners.append(listener)


def remove_listener(listener: Listener) -> None:
    """Stop calling ``listener``."""
    with _lock:
        _listeners.remove(listener)


def wake(node_ids: Iterable[int]) -> None:
    """Wake the node services here and in other processes for these nodes."""
    nodes = frozenset(node_ids)
    with _lock:
        listeners = list(_listeners)
    here = frozenset[int]().union(*(listener(nodes) for listener in listeners))
    if nodes - here:
        _publish(nodes - here)


def has_redis() -> bool:
    """Return whether Redis is configured (not in tests and offline commands)."""
    return not settings.TESSERA.redis_url.startswith("memory:")


def encode(node_ids: Iterable[int]) -> str:
    """Encode a message with its sender and the nodes."""
    return f"{origin()}:{','.join(str(node) for node in sorted(node_ids))}"


def decode(message: bytes) -> frozenset[int]:
    """Decode the nodes in a message of another process; empty for own and for invalid messages."""
    sender, _, nodes = message.decode("ascii", "replace").partition(":")
    if sender == origin():
        return frozenset()
    return frozenset(int(node) for node in nodes.split(",") if node.isdigit())


def _publish(nodes: frozenset[int]) -> None:
    if not has_redis():
        return
    try:
        redis_client().publish(CHANNEL, encode(nodes))
    except redis.RedisError as error:
        log.warning("no wake-up through Redis; nodes poll within 1 s: %s", error)


@cache
def redis_client() -> "redis.Redis[bytes]":
    """Return this process's client; it fails fast, since all its messages are hints."""
    return redis_address.redis_client(settings.TESSERA.redis_url, seconds=PUBLISH_SECONDS)
