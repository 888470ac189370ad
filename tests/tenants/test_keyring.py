"""The keys of an installation: their sources, their seal, and what a rotation does to them."""

import base64
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import asyncssh
import pytest
from django.core import signing
from django.core.management import CommandError, call_command
from django.db import OperationalError, connections
from django.utils import timezone

from portal.settings.environment import read_environment
from portal.settings.environment_values import SettingsError
from portal.supervisor.files import DataDir
from tenants import keyring
from tenants.audit import Actor
from tenants.keyring import (
    REFRESH_SECONDS,
    SshKey,
    StoredFallbacks,
    StoredSecretKey,
    UnreadableKeyError,
    current_keyring,
    digest_key,
    forget_keys,
    load_keyring,
    secret_keys,
)
from tenants.models import AuditEntry, InstallationKey
from tenants.services.keys import (
    drop_old_secret_keys,
    promote_secret_key,
    replace_ssh_key,
    reseal_keys,
    store_next_secret_key,
)
from tests.support.databases import migrated_template, real_database

__all__ = ["migrated_template", "real_database"]
ACTOR = Actor.system("tests")
SEAL = "seal-" + "s" * 40


@pytest.fixture
def data(real_database: None, settings: Any, tmp_path: Path) -> DataDir:
    """A data directory of a host whose environment contains no key."""
    settings.TESSERA = replace(settings.TESSERA, data_dir=tmp_path / "data", secret_key="")
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = StoredSecretKey(), StoredFallbacks()
    return DataDir(root=tmp_path / "data")


def on_host(settings: Any, data_dir: Path, **environment: object) -> None:
    settings.TESSERA = replace(settings.TESSERA, data_dir=data_dir, **environment)
    forget_keys()


def test_a_second_host_needs_only_the_seal_secret(
    data: DataDir, settings: Any, tmp_path: Path
) -> None:
    call_command("set_up", verbosity=0)
    first = load_keyring()
    assert first.secret_key == data.secret_key.read_text().strip()
    assert first.ssh_keys[0].private == data.client_key.read_text()

    on_host(settings, tmp_path / "other", seal_secret=data.seal_secret.read_text().strip())
    call_command("set_up", verbosity=0)

    assert load_keyring() == first
    other = DataDir(root=tmp_path / "other")
    assert not other.secret_key.exists()
    assert not other.client_key.exists()
    assert other.client_public_key.read_text() == data.client_public_key.read_text()


def test_a_host_with_another_seal_secret_is_refused_with_the_remedy(
    data: DataDir, settings: Any, tmp_path: Path
) -> None:
    call_command("set_up", verbosity=0)
    on_host(settings, tmp_path / "other", seal_secret=SEAL)

    with pytest.raises(UnreadableKeyError, match="tessera join"):
        current_keyring()
    with pytest.raises(Exception, match="TESSERA_SEAL_SECRET"):
        call_command("set_up", verbosity=0)
    assert InstallationKey.objects.count() == 3


def test_keys_of_an_earlier_version_remain_the_keys(data: DataDir) -> None:
    key = SshKey.generate()
    (data.root / "ssh").mkdir(parents=True)
    data.secret_key.write_text("k" * 50 + "\n")
    data.client_key.write_text(key.private)
    before = load_keyring()

    call_command("set_up", verbosity=0)

    after = load_keyring()
    assert after == before
    assert (after.secret_key, after.ssh_keys) == ("k" * 50, (key,))
    assert data.client_public_key.read_text().split()[:2] == key.public.split()
    stored = b"".join(bytes(row.sealed) for row in InstallationKey.objects.all())
    assert b"k" * 50 not in stored
    assert b"OPENSSH" not in stored


def test_a_key_in_pem_format_of_an_earlier_version_remains_the_key(data: DataDir) -> None:
    key = asyncssh.generate_private_key("ssh-rsa")
    (data.root / "ssh").mkdir(parents=True)
    data.client_key.write_text(key.export_private_key("pkcs1-pem").decode())

    call_command("set_up", verbosity=0)

    (found,) = load_keyring().ssh_keys
    assert found.public == key.export_public_key().decode().strip()
    assert asyncssh.import_private_key(found.private) == key


def test_the_environment_comes_before_the_database(data: DataDir, settings: Any) -> None:
    call_command("set_up", verbosity=0)
    stored = load_keyring()
    key = SshKey.generate()
    on_host(
        settings,
        data.root,
        secret_key="e" * 40,
        secret_key_next=("n" * 40,),
        ssh_keys=(key.private,),
    )

    found = load_keyring()

    assert (found.secret_key, found.next_keys) == ("e" * 40, ("n" * 40,))
    # Nodes still have the stored key.
    assert [one.public for one in found.ssh_keys] == [key.public, stored.ssh_keys[0].public]
    assert found.installation == stored.installation


def test_a_rotation_keeps_signatures_digests_and_the_installation(data: DataDir) -> None:
    call_command("set_up", verbosity=0)
    before, signed, digest = load_keyring(), signing.dumps("alice"), digest_key()

    store_next_secret_key("n" * 50, now=timezone.now(), actor=ACTOR)
    assert secret_keys() == (before.secret_key, "n" * 50)
    promote_secret_key(now=timezone.now(), actor=ACTOR)

    assert secret_keys() == ("n" * 50, before.secret_key)
    assert signing.loads(signed) == "alice"
    assert signing.loads(signing.dumps("bob")) == "bob"
    assert digest_key() == digest
    assert load_keyring().installation == before.installation

    assert drop_old_secret_keys(before=timezone.now(), actor=ACTOR) == 1
    with pytest.raises(signing.BadSignature):
        signing.loads(signed)
    assert load_keyring().installation == before.installation
    assert AuditEntry.objects.unscoped().filter(action__startswith="secret_key.").count() == 3


def test_only_one_rotation_of_the_ssh_key_runs_at_a_time(data: DataDir) -> None:
    call_command("set_up", verbosity=0)
    old, first = load_keyring().ssh_keys[0], SshKey.generate()

    assert replace_ssh_key(first, now=timezone.now(), actor=ACTOR)
    assert not replace_ssh_key(SshKey.generate(), now=timezone.now(), actor=ACTOR)

    assert load_keyring().ssh_keys == (first, old)


def test_stored_keys_are_sealed_anew_after_a_change_of_the_secret_key_of_the_environment(
    data: DataDir, settings: Any
) -> None:
    on_host(settings, data.root, secret_key="a" * 40)
    call_command("set_up", verbosity=0)
    key = load_keyring().ssh_keys
    on_host(settings, data.root, secret_key="b" * 40, secret_key_fallbacks=("a" * 40,))
    assert load_keyring().ssh_keys == key

    assert (reseal_keys(), reseal_keys()) == (1, 0)

    on_host(settings, data.root, secret_key_fallbacks=())
    assert load_keyring().ssh_keys == key


def test_a_process_reads_the_keys_again_after_some_seconds_and_survives_the_database(
    data: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    call_command("set_up", verbosity=0)
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr("tenants.keyring.time.monotonic", lambda: clock.now)
    forget_keys()
    first = current_keyring()
    InstallationKey.objects.filter(kind="secret").update(state="old")
    InstallationKey.objects.filter(kind="secret").delete()

    clock.now += REFRESH_SECONDS - 0.1
    assert current_keyring() is first
    monkeypatch.setattr(keyring, "load_keyring", _fail)
    clock.now += 0.2
    assert current_keyring() is first
    forget_keys()
    with pytest.raises(OperationalError):
        current_keyring()


def _fail() -> keyring.Keyring:
    raise OperationalError("gone")


def test_no_key_is_in_a_representation() -> None:
    key = SshKey.generate()
    ring = keyring.Keyring(
        secret_key="k" * 40, next_keys=("n" * 40,), old_keys=("o" * 40,), ssh_keys=(key,)
    )
    found = read_environment(
        {
            "TESSERA_SECRET_KEY": "k" * 40,
            "TESSERA_SSH_KEY": _base64(key.private),
            "TESSERA_SEAL_SECRET": SEAL,
        }
    )

    for shown in (repr(ring), repr(found), repr(StoredSecretKey()), repr(StoredFallbacks())):
        assert not any(word in shown for word in ("kkk", "nnn", "ooo", "sss", "PRIVATE"))


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"TESSERA_SEAL_SECRET": "too-short"}, "at least 32"),
        ({"TESSERA_SSH_KEY": "no key"}, "not a private key"),
        ({"TESSERA_SSH_KEY_FALLBACKS": "x"}, "needs TESSERA_SSH_KEY"),
        ({"TESSERA_SEAL_SECRET": SEAL, "TESSERA_SEAL_SECRET_FILE": "/x"}, "cannot be combined"),
        ({"TESSERA_SEAL_SECRET_FILE": "/does/not/exist"}, "cannot be read"),
    ],
)
def test_an_invalid_key_stops_the_start_and_is_not_repeated(
    environ: dict[str, str], message: str
) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        read_environment(environ)

    assert "too-short" not in str(caught.value)
    assert SEAL not in str(caught.value)


def test_a_secret_may_be_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "seal").write_text(SEAL + "\n")

    found = read_environment({"TESSERA_SEAL_SECRET_FILE": str(tmp_path / "seal")})

    assert found.seal_secret == SEAL


@pytest.fixture(autouse=True)
def closed(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "real_database" in request.fixturenames:
        connections.close_all()


def test_fallbacks_that_django_read_before_a_promotion_include_the_key_of_signatures(
    data: DataDir,
) -> None:
    call_command("set_up", verbosity=0)
    store_next_secret_key("n" * 50, now=timezone.now(), actor=ACTOR)
    before = load_keyring().secret_key

    fallbacks = [*StoredFallbacks()]
    promote_secret_key(now=timezone.now(), actor=ACTOR)

    assert before in (str(StoredSecretKey()), *fallbacks)


def test_of_two_hosts_that_promote_one_key_the_second_leaves_it_in_use(
    data: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    call_command("set_up", verbosity=0)
    row = store_next_secret_key("n" * 50, now=timezone.now(), actor=ACTOR)
    assert promote_secret_key(now=timezone.now(), actor=ACTOR)
    # The second host has read the row before the first one changed it.
    monkeypatch.setattr("tenants.services.keys.key_row", lambda *_: row)

    assert not promote_secret_key(now=timezone.now(), actor=ACTOR)

    forget_keys()
    assert load_keyring().secret_key == "n" * 50


def test_keys_that_only_files_contain_are_not_rotated_away(data: DataDir) -> None:
    data.prepare()
    before, files = load_keyring(), (data.secret_key, data.client_key)

    for command in ("rotate_node_key", "rotate_secret_key"):
        with pytest.raises(CommandError, match="set_up"):
            call_command(command)

    assert all(path.exists() for path in files)
    forget_keys()
    after = load_keyring()
    assert (after.secret_key, after.ssh_keys) == (before.secret_key, before.ssh_keys)
