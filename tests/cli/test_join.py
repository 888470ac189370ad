"""A further control host gets its environment by a one-time token."""

import io
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from typer.testing import CliRunner

from portal.management.commands.join_token import environment_file
from portal.settings.environment import read_environment
from tenants.audit import Actor
from tenants.clock import database_now
from tenants.keyring import SshKey
from tenants.models import AuditEntry, JoinBundle
from tenants.services.joining import issue_bundle, take_bundle
from tessera.cli.main import app
from tessera.client import ClientError
from tessera.joining import split_token

pytestmark = pytest.mark.django_db
ACTOR = Actor.system("tests")
SEAL = "seal-" + "s" * 40
CONTENT = f"TESSERA_SEAL_SECRET={SEAL}\n"


class Portal:
    """The portal of the first host, reached by the client of the command line."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    def post(self, url: str, *, json: Any, **options: Any) -> Any:
        self.requests.append((url, json))
        answer = Client().post("/" + url.split("/", 3)[3], json, content_type="application/json")
        return type("Answer", (), {"status_code": answer.status_code, "content": answer.content})


@pytest.fixture
def portal(monkeypatch: pytest.MonkeyPatch) -> Portal:
    found = Portal()
    monkeypatch.setattr("tessera.cli.join.httpx.post", found.post)
    return found


def issue() -> str:
    return issue_bundle(CONTENT, lifetime=timedelta(minutes=5), now=database_now(), actor=ACTOR)


def joined(token: str, file: Path) -> Any:
    return CliRunner().invoke(
        app, ["join", "http://a.example.org", "--environment", str(file)], input=token + "\n"
    )


def test_the_environment_arrives_once_and_the_secret_of_the_token_stays_here(
    portal: Portal, tmp_path: Path
) -> None:
    token = issue()

    done = joined(token, tmp_path / "environment")

    assert done.exit_code == 0, done.output
    assert (tmp_path / "environment").read_text() == CONTENT
    assert (tmp_path / "environment").stat().st_mode & 0o777 == 0o600
    assert SEAL not in done.output
    assert split_token(token)[1] not in repr(portal.requests)
    assert not JoinBundle.objects.exists()
    again = joined(token, tmp_path / "again")
    assert isinstance(again.exception, ClientError)
    assert "used before" in str(again.exception)
    assert not (tmp_path / "again").exists()
    actions = AuditEntry.objects.unscoped().filter(action__startswith="join_bundle.")
    assert actions.count() == 2


def test_a_value_of_several_lines_is_not_printed(portal: Portal, tmp_path: Path) -> None:
    content = f'TESSERA_SSH_KEY="-----BEGIN OPENSSH PRIVATE KEY-----\nsecretbytes==\n"\n{CONTENT}'
    token = issue_bundle(content, lifetime=timedelta(minutes=5), now=database_now(), actor=ACTOR)

    done = joined(token, tmp_path / "environment")

    assert (tmp_path / "environment").read_text() == content
    assert "with TESSERA_SSH_KEY, TESSERA_SEAL_SECRET" in " ".join(done.output.split())
    assert "secretbytes" not in done.output


def test_a_file_that_cannot_be_created_does_not_use_up_the_token(
    portal: Portal, tmp_path: Path
) -> None:
    token = issue()

    done = joined(token, tmp_path / "missing" / "environment")

    assert "cannot be created" in str(done.exception)
    assert not portal.requests
    assert joined(token, tmp_path / "environment").exit_code == 0


def test_no_row_reveals_the_environment() -> None:
    token = issue()

    (row,) = JoinBundle.objects.all()
    assert SEAL.encode() not in bytes(row.sealed)
    assert split_token(token)[1] not in row.id


def test_an_expired_token_and_a_token_with_another_secret_give_nothing(
    portal: Portal, tmp_path: Path
) -> None:
    token = issue()
    later = database_now() + timedelta(minutes=6)
    assert take_bundle(split_token(token)[0], now=later, actor=ACTOR) is None

    other = f"tsj-{split_token(token)[0]}-{'x' * 43}"
    done = joined(other, tmp_path / "environment")

    assert "not encrypted" in str(done.exception)
    assert not (tmp_path / "environment").exists()


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"id": 5}', b'{"id": "' + b"a" * 5000, b"[" * 1000]
)
def test_other_requests_get_404(body: bytes) -> None:
    assert Client().post("/join/", body, content_type="application/json").status_code == 404
    assert Client().get("/join/").status_code == 405


def test_an_existing_file_is_not_replaced(portal: Portal, tmp_path: Path) -> None:
    (tmp_path / "environment").write_text("mine")
    token = issue()

    joined(token, tmp_path / "environment")

    assert (tmp_path / "environment").read_text() == "mine"
    assert not portal.requests


def test_the_file_has_the_variables_that_all_hosts_share() -> None:
    environ = {
        "TESSERA_DATABASE_URL": "postgres://u:p$w@db/tessera",
        "TESSERA_DATA_DIR": "/var/lib/tessera",
        "TESSERA_ROUND_SECONDS": "5",
        "HOME": "/root",
    }

    text = environment_file(environ, read_environment(environ), SEAL)

    assert text.splitlines() == [
        'TESSERA_DATABASE_URL="postgres://u:p\\$w@db/tessera"',
        "TESSERA_ROUND_SECONDS=5",
        f'TESSERA_SEAL_SECRET="{SEAL}"',
    ]


def test_keys_in_files_of_this_host_are_in_the_bundle(tmp_path: Path) -> None:
    key = SshKey.generate()
    (tmp_path / "key").write_text(key.private)
    (tmp_path / "secret").write_text("k" * 50 + "\n")
    environ = {
        "TESSERA_SSH_KEY_FILE": str(tmp_path / "key"),
        "TESSERA_SECRET_KEY_FILE": str(tmp_path / "secret"),
    }

    text = environment_file(environ, read_environment(environ), SEAL)

    lines = [line.replace('"', "").partition("=") for line in text.splitlines()]
    other = read_environment({name: value for name, _, value in lines})
    assert [SshKey.of(one).public for one in other.ssh_keys] == [key.public]
    assert other.secret_key == "k" * 50


def test_a_host_that_others_cannot_reach_creates_no_token(settings: Any) -> None:
    settings.TESSERA = replace(settings.TESSERA, database_url="sqlite:///x")
    with pytest.raises(CommandError, match="PostgreSQL"):
        call_command("join_token", stdout=io.StringIO())
    settings.TESSERA = replace(
        settings.TESSERA, database_url="postgres://db/x", redis_url="redis://127.0.0.1:6379/0"
    )
    with pytest.raises(CommandError, match="TESSERA_REDIS_URL"):
        call_command("join_token", stdout=io.StringIO())
