"""One portal for all tests of faults, whole again before each of them."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from portal.supervisor.redis_server import NoRedisError, find_redis
from tests.faults.workload import Scene, make_scene_at
from tests.support.whole_portal import WholePortal, whole_portal

MakeScene = Callable[..., Scene]


@pytest.fixture(scope="session")
def one_portal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholePortal]:
    try:
        find_redis()
    except NoRedisError as error:
        pytest.skip(str(error))
    with whole_portal(tmp_path_factory.mktemp("faults")) as portal:
        # This also makes a token for each, while nobody is hurt: the password is asked for once.
        portal.stop_examples()
        yield portal


@pytest.fixture
def portal(one_portal: WholePortal) -> WholePortal:
    if one_portal.process is None:
        one_portal.up()
    one_portal.wait_until_ready()
    return one_portal


@pytest.fixture
def make_scene(portal: WholePortal, tmp_path: Path) -> Iterator[MakeScene]:
    """Makes people, what they want, and the ledger in which their jobs leave evidence.

    At the end it says when each fault was, in seconds since the scene was made (``pytest -rP``).
    """

    def make(rng: random.Random, tag: str, *, longest: float = 25.0) -> Scene:
        return make_scene_at(portal, tmp_path, rng, tag, longest=longest)

    yield make
    print(*portal.notes, sep="\n")
