"""Addresses of Redis: their parts, and settings of Celery and the channel layer."""

import ssl

import pytest

from workers.redis_address import (
    InvalidRedisAddressError,
    broker_options,
    channel_host,
    sentinel_master,
)

URL = "sentinel://app:p%40ss@h1:26380,h2,[fd00::1]:26379/mymaster?db=2&sentinel_password=s"


def test_a_sentinel_address_has_hosts_master_and_credentials() -> None:
    found = sentinel_master(URL)

    assert found is not None
    assert found.sentinels == (("h1", 26380), ("h2", 26379), ("fd00::1", 26379))
    assert (found.name, found.database, found.is_tls) == ("mymaster", 2, False)
    assert found.server_options == {"db": 2, "username": "app", "password": "p@ss"}
    assert found.sentinel_options["password"] == "s"
    assert "p@ss" not in repr(found)


def test_celery_and_channels_get_the_same_master() -> None:
    celery, channels = broker_options(URL), channel_host(URL)

    assert celery["broker_url"].split(";")[0] == "sentinel://app:p%40ss@h1:26380/2"
    assert celery["broker_transport_options"]["master_name"] == "mymaster"
    assert isinstance(channels, dict)
    assert (channels["master_name"], channels["password"], channels["db"]) == (
        "mymaster",
        "p@ss",
        2,
    )


def test_tls_checks_the_certificate_of_redis_and_of_sentinels() -> None:
    url = "sentinels://h1:26379/m?ssl_ca_certs=/ca.pem"
    found = sentinel_master(url)

    assert found is not None
    for options in (found.server_options, found.sentinel_options):
        assert (options["ssl"], options["ssl_cert_reqs"]) == (True, "required")
        assert options["ssl_ca_certs"] == "/ca.pem"
    of_celery = {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_ca_certs": "/ca.pem"}
    assert broker_options(url)["broker_use_ssl"] == of_celery
    assert broker_options("rediss://h/0?ssl_ca_certs=/ca.pem")["broker_use_ssl"] == of_celery


@pytest.mark.parametrize(
    "url", ["redis://h/0", "rediss://:p@h:6380/1", "unix:///run/redis.sock", "memory://"]
)
def test_other_addresses_have_no_sentinels(url: str) -> None:
    assert sentinel_master(url) is None
    assert channel_host(url) == url


@pytest.mark.parametrize(
    "url",
    [
        "http://secret@h", "sentinel://:secret@h1", "sentinel://:secret@/m",
        "sentinel://:secret@h1,/m", "sentinel://:secret@h1/m?x=1", "sentinel://:secret@h1/m?db=x",
    ],
)  # fmt: skip
def test_an_invalid_address_is_not_repeated(url: str) -> None:
    with pytest.raises(InvalidRedisAddressError) as caught:
        sentinel_master(url)

    assert "secret" not in str(caught.value)
