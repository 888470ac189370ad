"""The login of a registry: in one header of one request to the engine, and nowhere else."""

import base64
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from tests.support.image_engine import ImageEngine
from tests.support.unix_http import served
from workers.transports.base import Container, Preparation, PrepareError
from workers.transports.images import obtain

SECRET = "hunter2:with:colons"
IMAGE = "registry.example.org/team/train:1"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[ImageEngine]:
    found = ImageEngine(tmp_path / "engine.sock")
    found.registry.images[IMAGE] = "sha256:1"
    with served(found):
        yield found


@pytest.fixture
def client(engine: ImageEngine) -> Iterator[docker.APIClient]:
    found = docker.APIClient(base_url=f"unix://{engine.server_address}", version="1.41")
    yield found
    found.close()


def test_a_login_goes_into_the_header_of_the_pull_and_nowhere_else(
    engine: ImageEngine, client: docker.APIClient, caplog: pytest.LogCaptureFixture
) -> None:
    said: list[str] = []
    container = Container(image=IMAGE, login=f"alice:{SECRET}")

    with caplog.at_level(logging.DEBUG):
        obtain(client, "run", container, lambda run, text: said.append(text))

    (pulled,) = (number for number, row in enumerate(engine.asked) if "/create" in row[0])
    path, headers, body = engine.asked.pop(pulled)
    login = json.loads(base64.urlsafe_b64decode(headers["X-Registry-Auth"]))
    assert (login["username"], login["password"]) == ("alice", SECRET)
    assert not [first for first in engine.asked if "X-Registry-Auth" in first[1]]
    shown = "".join([path, body.decode(), *said, caplog.text, repr(container)])
    assert SECRET not in shown
    assert SECRET not in repr(Preparation(run=None, container=container))  # type: ignore[arg-type]


def test_without_a_login_no_login_of_the_portals_own_user_is_sent(
    engine: ImageEngine, client: docker.APIClient, tmp_path: Path
) -> None:
    found = {
        "auths": {"registry.example.org": {"auth": base64.b64encode(b"root:s3cret").decode()}}
    }
    (tmp_path / "config.json").write_text(json.dumps(found))
    client.reload_config(str(tmp_path / "config.json"))
    obtain(client, "run", Container(image=IMAGE), lambda run, text: None)

    headers = next(row[1] for row in engine.asked if "/create" in row[0])
    assert json.loads(base64.urlsafe_b64decode(headers["X-Registry-Auth"])) == {}


def test_a_refused_login_does_not_tell_it(engine: ImageEngine, client: docker.APIClient) -> None:
    engine.registry.logins[IMAGE] = {"alice:other"}
    container = Container(image=IMAGE, login=f"alice:{SECRET}")

    with pytest.raises(PrepareError, match="denied") as refused:
        obtain(client, "run", container, lambda run, text: None)

    assert SECRET not in str(refused.value)
