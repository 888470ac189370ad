"""Whom the cache of a node serves: the rule of ``workers.transports.images``, case by case."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import docker
import pytest

from tests.support.image_engine import ImageEngine
from tests.support.unix_http import served
from workers.transports.base import Container, PrepareError
from workers.transports.images import GRANTS, PullProgress, mirrored, obtain

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


MIRRORS = {"registry.example.org": "mirror.example.org:5000/cache"}
AT_MIRROR = "mirror.example.org:5000/cache/base:1"


def pulled(engine: ImageEngine) -> list[str]:
    """Names in the order in which the engine was asked to pull them."""
    queries = [parse_qs(urlsplit(path).query) for path, _, _ in engine.asked if "/create" in path]
    return [f"{query['fromImage'][0]}:{query['tag'][0]}" for query in queries]


def test_a_public_image_comes_from_the_mirror_and_is_then_cached_for_all(
    engine: ImageEngine, client: docker.APIClient
) -> None:
    engine.registry.images[AT_MIRROR] = "sha256:7"
    container = Container(image=PUBLIC, tenant="vision", mirrors=MIRRORS)

    assert obtain(client, "run", container, lambda run, text: None) == "sha256:7"
    engine.registry.answers = False
    other = replace(container, tenant="language")
    assert obtain(client, "run", other, lambda run, text: None) == "sha256:7"
    assert pulled(engine) == [AT_MIRROR]


def test_a_mirror_that_fails_is_replaced_by_the_registry(
    engine: ImageEngine, client: docker.APIClient
) -> None:
    container = Container(image=PUBLIC, tenant="vision", mirrors=MIRRORS)

    assert obtain(client, "run", container, lambda run, text: None) == "sha256:1"
    assert pulled(engine) == [AT_MIRROR, PUBLIC]


def test_a_job_with_a_login_does_not_use_the_rights_of_the_mirror(
    engine: ImageEngine, client: docker.APIClient
) -> None:
    engine.registry.images["mirror.example.org:5000/cache/vision/train:1"] = "sha256:7"
    container = Container(image=PRIVATE, tenant="vision", login=ALICE, mirrors=MIRRORS)

    assert obtain(client, "run", container, lambda run, text: None) == "sha256:2"
    assert pulled(engine) == [PRIVATE]


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("python:3.11", "m/library/python:3.11"),
        ("pytorch/pytorch:2", "m/pytorch/pytorch:2"),
        ("docker.io/pytorch/pytorch:2", "m/pytorch/pytorch:2"),
        ("python@sha256:aa", "m/library/python@sha256:aa"),
        ("ghcr.io/a/b:1", ""),
        ("localhost/a:1", ""),
        ("host:5000/a:1", ""),
    ],
)
def test_a_name_at_the_mirror_has_the_path_of_the_registry(image: str, expected: str) -> None:
    assert mirrored(image, {"docker.io": "m"}) == expected


def test_the_progress_of_a_pull_has_bytes_percent_and_layers() -> None:
    pull = PullProgress("a/b:1")
    lines: list[dict[str, Any]] = [
        {"status": "Pulling from a/b", "id": "1"},
        *({"status": "Pulling fs layer", "id": layer} for layer in ("x", "y", "z")),
        {"status": "Already exists", "id": "z"},
        {"status": "Downloading", "id": "x", "progressDetail": {"current": 3e6, "total": 4}},
        {
            "status": "Downloading",
            "id": "x",
            "progressDetail": {"current": 10**9, "total": 2 * 10**9},
        },
        {"status": "Downloading", "id": "y", "progressDetail": {"current": 0, "total": 2 * 10**9}},
    ]

    said = [pull.take(line, now=10.0 * number) for number, line in enumerate(lines)]

    assert said[:2] == ["", "pulling a/b:1, 0 of 1 layers"]
    assert said[-1] == "pulling a/b:1: 1.0 GB of 4.0 GB (25 %), 1 of 3 layers"
    assert pull.take({"status": "Download complete", "id": "x"}, now=71.0) == ""
    assert pull.take({"status": "Pull complete", "id": "x"}, now=72.0).endswith(
        "2.0 GB of 4.0 GB (50 %), 2 of 3 layers"
    )


def test_a_silent_registry_does_not_end_a_pull(engine: ImageEngine) -> None:
    hasty = docker.APIClient(base_url=f"unix://{engine.server_address}", version="1.41", timeout=1)
    engine.silent_seconds = 1.2

    assert ask(hasty, PUBLIC, "vision") == "sha256:1"
    hasty.close()


def test_the_text_of_the_progress_ends_with_the_pull(client: docker.APIClient) -> None:
    said: list[str] = []

    obtain(client, "run", Container(image=PUBLIC), lambda run, text: said.append(text))

    assert said == [f"pulling {PUBLIC}", ""]


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
