"""On a whole portal: a new wait is answered within seconds, and who looks at it is told."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from websockets.sync.client import connect

from portal.broker.requests import ALL_KEY, QUIET_KEY
from portal.supervisor.redis_server import NoRedisError, find_redis
from tessera.client import Client
from tests.support.waiting import wait_until
from tests.support.whole_portal import WholePortal, whole_portal

pytestmark = [pytest.mark.redis, pytest.mark.timeout(900)]

SOON_SECONDS = 60.0
"""A loaded machine's few seconds; all estimates are not renewed for much longer."""


@pytest.fixture
def portal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholePortal]:
    try:
        find_redis()
    except NoRedisError as error:
        pytest.skip(str(error))
    with whole_portal(tmp_path_factory.mktemp("answers")) as portal:
        portal.stop_examples()
        with redis.Redis.from_url(portal.redis_url) as broker:
            for key in (ALL_KEY, QUIET_KEY):
                broker.set(key, "1", ex=3600)
        yield portal


def submit(client: Client, name: str, **changes: Any) -> int:
    worker = {"instances": 1, "devices": 8, "command": "sleep 900"}
    spec = {"name": name, "virtual_cluster": "vision-a", "roles": {"worker": worker}, **changes}
    return client.submit(spec).id


def test_a_new_wait_is_answered_within_seconds_and_its_page_is_told(portal: WholePortal) -> None:
    with portal.client("alice") as alice:
        for number in range(3):
            submit(alice, f"fills-{number}", max_duration=900)
        job = submit(alice, "waits", held=True)

        def answer() -> Any:
            return alice.why(job).body

        wait_until(lambda: answer()["code"] == "held", SOON_SECONDS, "the first round")
        wait_until(lambda: not answer()["pending"], SOON_SECONDS, "what would help")
        assert answer()["steps"] or answer()["proof"]
        with connect(f"ws://127.0.0.1:{portal.port}/ws/live/") as socket:
            token = portal.token("alice")
            socket.send(json.dumps({"token": token, "subscribe": [f"job:{job}"], "confirm": True}))
            while json.loads(socket.recv(SOON_SECONDS))["topic"] != "confirmed":
                pass

            alice.post(f"jobs/{job}/release/")
            while not json.loads(socket.recv(SOON_SECONDS))["data"].get("why"):
                pass

        found = answer()
        assert found["code"] not in {"", "held"}
        assert found["pending"] == []
        assert found["steps"] or found["proof"]
        assert found["eta"] is not None
        assert found["ahead"] is not None
