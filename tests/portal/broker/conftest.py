"""Keys of each kind: every contract holds in this process and in a real Redis."""

from collections.abc import Iterator

import pytest
import redis

from portal.broker.connection import Keys, LocalKeys, RedisKeys
from tests.support.servers import broker


@pytest.fixture(scope="session")
def redis_port() -> Iterator[int]:
    with broker() as port:
        yield port


@pytest.fixture(params=["local", pytest.param("redis", marks=pytest.mark.redis)])
def keys(request: pytest.FixtureRequest) -> Iterator[Keys]:
    if request.param == "local":
        yield LocalKeys()
        return
    with redis.Redis(port=request.getfixturevalue("redis_port")) as client:
        client.flushall()
        yield RedisKeys(lambda: client)
