"""This process's connection to the broker, with back-off while the broker does not answer."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final
from urllib.parse import urlsplit

import redis
from django.conf import settings
from kombu.exceptions import KombuError

logger = logging.getLogger(__name__)

AWAY_SECONDS: Final = 1.0

_away_until: Final = [float("-inf")]
_warned: dict[str, int] = {}


def has_broker() -> bool:
    """Return whether a broker is configured (tests run without one)."""
    return urlsplit(settings.TESSERA.redis_url).scheme != "memory"


def broker_answers() -> bool:
    """Return whether the broker is reachable; True where none is configured."""
    if not has_broker():
        return True
    try:
        client().ping()
    except (redis.RedisError, OSError) as error:
        _warn("the broker does not answer", error)
        return False
    return True


def client() -> "redis.Redis[bytes]":
    """Return this process's client; it fails fast, since every message is only a hint.

    Raises:
        redis.ConnectionError: the broker did not answer within the last second. It is not
            tried again before that second has passed.
    """
    if time.monotonic() < _away_until[0]:
        raise _AwayError("the broker did not answer a moment ago")
    return _redis_client()


@contextmanager
def tolerated(consequence: str) -> Iterator[None]:
    """Log errors of the broker with their consequence instead of raising them."""
    try:
        yield
    except (redis.RedisError, KombuError, OSError) as error:
        _warn(consequence, error)


class _AwayError(redis.ConnectionError):
    """The broker did not answer a moment ago, and was not retried."""


@cache
def _redis_client() -> "redis.Redis[bytes]":
    return redis.Redis.from_url(
        settings.TESSERA.redis_url, socket_timeout=2.0, socket_connect_timeout=2.0
    )


def _warn(consequence: str, error: Exception) -> None:
    """Warn at most once a minute: an unreachable broker would otherwise fill the log."""
    if not isinstance(error, _AwayError):
        _away_until[0] = time.monotonic() + AWAY_SECONDS
    minute = int(time.monotonic() // 60)
    if _warned.get(consequence) != minute:
        _warned[consequence] = minute
        logger.warning("%s (%s)", consequence, error)
