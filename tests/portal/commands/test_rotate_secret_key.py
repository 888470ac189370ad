"""Rotation of the secret key during operation, interrupted between any two steps."""

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import SESSION_KEY
from django.core.management import CommandError, call_command
from django.db import connection, connections
from django.test import Client

from portal.key_rotation import drop_outlived_secret_keys, rotate_secret_key
from portal.supervisor.files import DataDir
from scheduling import secrets
from scheduling.clusters.models import RegistryLogin
from scheduling.jobs.models import JobSecret
from scheduling.maintenance import resealing
from scheduling.maintenance.resealing import SEALED, count_outdated
from scheduling.secrets import fingerprint, seal, unseal
from tenants.audit import Actor
from tenants.clock import database_now
from tenants.keyring import StoredFallbacks, StoredSecretKey, forget_keys, load_keyring
from tenants.models import InstallationKey
from tests.conftest import PROJECT_ROOT
from tests.factories.cluster import make_cluster, make_job, make_virtual_cluster
from tests.factories.tenants import make_user
from tests.support.databases import migrated_template, real_database
from tests.support.waiting import wait_until

__all__ = ["migrated_template", "real_database"]
ACTOR = Actor.system("tests")
PLAIN = "token-of-alice"


class EndedError(Exception):
    """Stands for the end of the process."""


@pytest.fixture
def data(real_database: None, settings: Any, tmp_path: Path) -> Iterator[DataDir]:
    """A host whose keys are in the database, with one sealed secret of each kind."""
    settings.TESSERA = replace(settings.TESSERA, data_dir=tmp_path / "data", secret_key="")
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = StoredSecretKey(), StoredFallbacks()
    call_command("set_up", verbosity=0, stdout=io.StringIO())
    _make_secrets()
    yield DataDir(root=tmp_path / "data")
    connections.close_all()


def _make_secrets() -> None:
    make_cluster(nodes=1)
    make_virtual_cluster(cells=1)
    job = make_job()
    JobSecret.objects.bulk_create(
        [
            JobSecret(job=job, role="worker", name=f"TOKEN_{n}", sealed=seal(PLAIN))
            for n in range(5)
        ]
    )
    RegistryLogin.objects.create(
        tenant_id=job.tenant_id, registry="registry.example.org", username="alice",
        sealed=seal(PLAIN), changed_at=database_now(),
    )  # fmt: skip


def no_wait(at: datetime) -> None:
    """Every process has read the keys."""


def plain_values() -> set[str]:
    return {
        unseal(sealed)
        for model, column in SEALED
        for _, sealed in resealing._values(model, column)
    }


def test_sessions_secrets_and_digests_remain_valid(data: DataDir) -> None:
    client, user = Client(), make_user("erin")
    client.force_login(user)
    before, digest = load_keyring(), fingerprint(b"request")
    assert count_outdated() == 0

    done = rotate_secret_key(actor=ACTOR, wait_until=no_wait)

    after = load_keyring()
    assert after.secret_key != before.secret_key
    assert after.old_keys == (before.secret_key,)
    assert (done.is_resumed, done.values.changed, done.values.unreadable) == (False, 6, 0)
    assert plain_values() == {PLAIN}
    assert count_outdated() == 0
    assert fingerprint(b"request") == digest
    assert client.get("/api/v1/jobs/").status_code == 200
    assert client.session[SESSION_KEY] == str(user.pk)
    # Signed anew: the session outlives the old key.
    InstallationKey.objects.filter(state="old").delete()
    forget_keys()
    assert client.get("/api/v1/jobs/").status_code == 200
    assert plain_values() == {PLAIN}


def interrupted_at(step: int) -> Callable[[datetime], None]:
    """Return a wait that ends the process at its n-th call."""
    calls = iter(range(10))

    def wait(at: datetime) -> None:
        if next(calls) == step:
            raise EndedError

    return wait


@pytest.mark.parametrize("step", [0, 1])
def test_interrupted_at_a_wait_the_next_call_completes_it(data: DataDir, step: int) -> None:
    before = load_keyring()
    with pytest.raises(EndedError):
        rotate_secret_key(actor=ACTOR, wait_until=interrupted_at(step))
    assert plain_values() == {PLAIN}

    done = rotate_secret_key(actor=ACTOR, wait_until=no_wait)

    after = load_keyring()
    assert done.is_resumed
    assert after.old_keys == (before.secret_key,)
    assert InstallationKey.objects.filter(kind="secret").count() == 2
    assert plain_values() == {PLAIN}
    assert count_outdated() == 0


def test_interrupted_among_the_secrets_the_next_call_completes_it(
    data: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = iter(range(3))
    real = secrets.reseal

    def reseal(sealed: bytes) -> bytes | None:
        if next(left, None) is None:
            raise EndedError
        return real(sealed)

    with monkeypatch.context() as patch:
        patch.setattr(resealing, "reseal", reseal)
        with pytest.raises(EndedError):
            rotate_secret_key(actor=ACTOR, wait_until=no_wait)
    assert count_outdated() == 3
    assert plain_values() == {PLAIN}

    assert rotate_secret_key(actor=ACTOR, wait_until=no_wait).values.changed == 3
    assert count_outdated() == 0


def test_housekeeping_drops_a_key_after_it_has_encrypted_its_secrets_anew(
    data: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(EndedError):
        rotate_secret_key(actor=ACTOR, wait_until=interrupted_at(1))
    assert count_outdated() == 6
    with monkeypatch.context() as patch:
        patch.setattr("portal.key_rotation.reseal_all", lambda: None)
        assert drop_outlived_secret_keys(before=database_now(), actor=ACTOR) == 0
    assert (
        drop_outlived_secret_keys(
            before=InstallationKey.objects.get(state="old").changed_at, actor=ACTOR
        )
        == 0
    )

    assert drop_outlived_secret_keys(before=database_now(), actor=ACTOR) == 1

    assert load_keyring().old_keys == ()
    assert plain_values() == {PLAIN}


def test_a_secret_that_changes_meanwhile_is_left_alone(
    data: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = secrets.reseal

    def reseal(sealed: bytes) -> bytes | None:
        # alice enters another password between the read and the write of this row.
        RegistryLogin.objects.unscoped().filter(sealed=sealed).update(sealed=seal("changed"))
        return real(sealed)

    monkeypatch.setattr(resealing, "reseal", reseal)
    rotate_secret_key(actor=ACTOR, wait_until=no_wait)

    (login,) = RegistryLogin.objects.unscoped()
    assert unseal(bytes(login.sealed)) == "changed"


def test_with_a_key_in_the_environment_the_command_only_encrypts_anew(
    data: DataDir, settings: Any
) -> None:
    before = load_keyring().secret_key
    settings.TESSERA = replace(
        settings.TESSERA, secret_key="e" * 40, secret_key_fallbacks=(before,)
    )
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "e" * 40, (before,)
    forget_keys()
    out = io.StringIO()

    call_command("rotate_secret_key", stdout=out)

    assert "encrypted 6 secrets" in out.getvalue()
    assert plain_values() == {PLAIN}
    settings.SECRET_KEY_FALLBACKS = ()
    assert plain_values() == {PLAIN}


def test_an_earlier_key_that_is_still_needed_is_not_dropped(
    data: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    from portal.management.commands import rotate_secret_key as command

    rotate_secret_key(actor=ACTOR, wait_until=no_wait)
    monkeypatch.setattr(command.Command, "_rotate", lambda self: None)
    monkeypatch.setattr(command, "count_outdated", lambda: 1)
    with pytest.raises(CommandError, match="no key was dropped"):
        call_command("rotate_secret_key", "--drop-old", stdout=io.StringIO())
    monkeypatch.undo()
    assert len(load_keyring().old_keys) == 1


def test_killed_while_it_waits_the_command_continues_and_prints_no_key(data: DataDir) -> None:
    if connection.vendor != "sqlite":
        pytest.skip("the process under test opens a SQLite file")
    before = load_keyring()
    rows = InstallationKey.objects.filter(kind="secret")
    first = _command(data)
    wait_until(lambda: rows.filter(state="next").exists(), 60, "the next key")
    os.kill(first.pid, signal.SIGKILL)
    said = first.communicate(timeout=60)[0]

    second = _command(data)
    said += second.communicate(timeout=100)[0]

    assert second.returncode == 0, said
    forget_keys()
    after = load_keyring()
    assert after.old_keys == (before.secret_key,)
    assert plain_values() == {PLAIN}
    assert count_outdated() == 0
    for key in (before.secret_key, after.secret_key, PLAIN, data.seal_secret.read_text().strip()):
        assert key not in said
    assert not data.secret_key.exists()


def _command(data: DataDir) -> "subprocess.Popen[str]":
    known = {key: value for key, value in os.environ.items() if not key.startswith("TESSERA_")}
    environment = known | {
        "DJANGO_SETTINGS_MODULE": "portal.settings",
        "TESSERA_DATA_DIR": str(data.root),
        "TESSERA_DATABASE_URL": f"sqlite:///{connection.settings_dict['NAME']}",
    }
    with suppress(KeyError):
        del environment["PYTEST_CURRENT_TEST"]
    return subprocess.Popen(
        [sys.executable, "manage.py", "rotate_secret_key"],
        cwd=PROJECT_ROOT, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
