"""Whom the cache of a node serves: the rule of ``workers.transports.images``, case by case."""

from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from tests.support.image_engine import ImageEngine
from tests.support.unix_http import served
from workers.transports.base import Container, PrepareError
from workers.transports.images import GRANTS, obtain

PUBLIC, PRIVATE = "registry.example.org/base:1", "registry.example.org/vision/train:1"
ALICE, BOB = "alice:hunter2", "bob:other"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[ImageEngine]:
    found = ImageEngine(tmp_path / "engine.sock")
    found.registry.images = {PUBLIC: "sha256:1", PRIVATE: "sha256:2"}
    found.registry.logins = {PRIVATE: {ALICE}}
    with served(found):
        yield found


@pytest.fixture
def client(engine: ImageEngine) -> Iterator[docker.APIClient]:
    found = docker.APIClient(base_url=f"unix://{engine.server_address}", version="1.41")
    yield found
    found.close()


def ask(client: docker.APIClient, image: str, tenant: str, login: str = "") -> str:
    container = Container(image=image, tenant=tenant, login=login)
    return obtain(client, "run", container, lambda run, text: None)


@pytest.mark.parametrize("login", ["", BOB])
def test_another_tenant_does_not_run_a_cached_private_image(
    client: docker.APIClient, login: str
) -> None:
    assert ask(client, PRIVATE, "vision", ALICE) == "sha256:2"

    with pytest.raises(PrepareError, match="denied") as refused:
        ask(client, PRIVATE, "language", login)

    assert refused.value.failure_class == "image"


def test_a_login_is_asked_for_at_every_start(
    engine: ImageEngine, client: docker.APIClient
) -> None:
    ask(client, PRIVATE, "vision", ALICE)
    engine.registry.logins[PRIVATE] = set()

    with pytest.raises(PrepareError, match="denied"):
        ask(client, PRIVATE, "vision", ALICE)

    assert engine.pulls == 2


def test_a_public_image_is_pulled_once_and_then_served_to_everybody(
    engine: ImageEngine, client: docker.APIClient
) -> None:
    ask(client, PUBLIC, "vision")
    engine.registry.answers = False

    assert ask(client, PUBLIC, "language") == "sha256:1"
    assert ask(client, PUBLIC, "language", BOB) == "sha256:1"
    assert engine.pulls == 2


def test_without_the_registry_only_those_who_have_pulled_an_image_run_it(
    engine: ImageEngine, client: docker.APIClient
) -> None:
    ask(client, PRIVATE, "vision", ALICE)
    engine.registry.answers = False

    assert ask(client, PRIVATE, "vision", ALICE) == "sha256:2"
    for login in ("", ALICE, BOB):
        with pytest.raises(PrepareError, match="connection refused"):
            ask(client, PRIVATE, "language", login)


def test_a_grant_is_for_one_image_and_not_for_what_takes_its_name(
    engine: ImageEngine, client: docker.APIClient
) -> None:
    ask(client, PRIVATE, "vision", ALICE)
    ask(client, PRIVATE, "language", ALICE)
    engine.registry.images[PRIVATE] = "sha256:3"
    ask(client, PRIVATE, "vision", ALICE)
    engine.registry.answers = False

    assert ask(client, PRIVATE, "vision", ALICE) == "sha256:3"
    with pytest.raises(PrepareError):
        ask(client, PRIVATE, "language", ALICE)


@pytest.mark.parametrize("login", ["", ALICE])
def test_an_image_that_came_from_no_registry_is_run_without_asking_one(
    engine: ImageEngine, client: docker.APIClient, login: str
) -> None:
    engine.cached["programs:1"] = "sha256:9"
    engine.local.add("sha256:9")

    assert ask(client, "programs:1", "vision", login) == "sha256:9"
    assert engine.pulls == 0


def test_images_below_a_declared_prefix_are_local(
    engine: ImageEngine, client: docker.APIClient
) -> None:
    engine.cached = {"mirror/base:1": "sha256:9", "localhost/base:1": "sha256:8"}
    declared = Container(image="mirror/base:1", tenant="vision", local_images=("mirror/",))

    assert obtain(client, "run", declared, lambda run, text: None) == "sha256:9"
    assert ask(client, "localhost/base:1", "vision") == "sha256:8"
    with pytest.raises(PrepareError):
        ask(client, "mirror/base:1", "vision")


def test_a_job_cannot_name_an_image_by_its_id_or_by_a_grant(
    engine: ImageEngine, client: docker.APIClient
) -> None:
    ask(client, PRIVATE, "vision", ALICE)
    grant = next(name for name in engine.cached if name.startswith(GRANTS))

    for name in (grant, "sha256:2"):
        with pytest.raises(PrepareError):
            ask(client, name, "language", BOB)


@pytest.mark.parametrize("name", ["sha256:2", f"sha256:{'2' * 64}", "2" * 64, "A" * 64])
def test_an_id_is_refused_whatever_is_cached(
    engine: ImageEngine, client: docker.APIClient, name: str
) -> None:
    engine.cached[name] = "sha256:2"
    engine.local.add("sha256:2")

    with pytest.raises(PrepareError, match="is an image id; use the name") as refused:
        ask(client, name, "language")

    assert refused.value.failure_class == "image"
    assert engine.asked == []


def test_a_name_that_the_engine_takes_for_the_beginning_of_an_id_asks_the_registry(
    engine: ImageEngine, client: docker.APIClient
) -> None:
    engine.cached["cafe"] = f"sha256:cafe{'2' * 60}"
    engine.local.add(f"sha256:cafe{'2' * 60}")

    with pytest.raises(PrepareError, match="denied"):
        ask(client, "cafe", "language")

    assert engine.pulls == 1
