"""Private and public images with a real engine and a real registry."""

from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from tests.support.docker_engine import IMAGE, docker_engine
from tests.support.registry import LOGIN, RealRegistry, registry
from workers.transports.base import Container, PrepareError
from workers.transports.images import obtain

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[docker.APIClient]:
    with docker_engine(tmp_path_factory.mktemp("d")) as (_, found):
        yield found


@pytest.fixture
def private(tmp_path: Path, client: docker.APIClient) -> Iterator[tuple[RealRegistry, str]]:
    with registry(tmp_path / "private", with_login=True) as one:
        yield one, pushed(client, one, LOGIN)


@pytest.fixture
def public(tmp_path: Path, client: docker.APIClient) -> Iterator[tuple[RealRegistry, str]]:
    with registry(tmp_path / "public", with_login=False) as one:
        yield one, pushed(client, one, "")


def pushed(client: docker.APIClient, to: RealRegistry, login: str) -> str:
    """Put an image of its own into a registry, and out of the engine's cache."""
    name = f"{to.host}/team/train"
    user, _, password = login.partition(":")
    made = client.create_container(IMAGE, ["/bin/sh"])
    client.commit(made, name, tag="1", changes=f"LABEL host={to.host}")
    client.remove_container(made)
    auth = {"username": user, "password": password} if login else {}
    said = client.push(name, tag="1", auth_config=auth)
    assert "error" not in said, said
    client.remove_image(f"{name}:1")
    return f"{name}:1"


def ask(client: docker.APIClient, image: str, tenant: str, login: str = "") -> str:
    container = Container(image=image, tenant=tenant, login=login)
    return obtain(client, "run", container, lambda run, text: None)


def test_a_private_image_in_the_cache_is_run_by_those_who_may_pull_it(
    client: docker.APIClient, private: tuple[RealRegistry, str]
) -> None:
    server, image = private
    found = ask(client, image, "vision", LOGIN)

    for login in ("", "bob:guess"):
        with pytest.raises(PrepareError) as refused:
            ask(client, image, "language", login)
        assert refused.value.failure_class == "image"

    server.stop()
    assert ask(client, image, "vision", LOGIN) == found
    with pytest.raises(PrepareError):
        ask(client, image, "language", LOGIN)


def test_a_public_image_in_the_cache_needs_no_registry(
    client: docker.APIClient, public: tuple[RealRegistry, str]
) -> None:
    server, image = public
    found = ask(client, image, "vision")
    server.stop()

    assert ask(client, image, "language") == found


@pytest.mark.parametrize("length", [12, 64])
def test_an_id_does_not_lead_to_the_private_image_of_another_tenant(
    client: docker.APIClient, private: tuple[RealRegistry, str], length: int
) -> None:
    _, image = private
    found = ask(client, image, "vision", LOGIN)
    client.remove_image(image)  # the name and its digest; the record of the grant stays
    assert not client.inspect_image(found)["RepoDigests"]
    digits = found.removeprefix("sha256:")[:length]

    for name in (digits, f"sha256:{digits}"):
        with pytest.raises(PrepareError) as refused:
            ask(client, name, "language")
        assert refused.value.failure_class == "image"
