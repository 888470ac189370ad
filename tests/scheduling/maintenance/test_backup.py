"""A backup is of one instant, readable by its owner alone, and comes back whole or not at all."""

import fcntl
import io
import json
import shutil
import sqlite3
import stat
import subprocess
import sys
import tarfile
from contextlib import closing
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import connections

from scheduling.clusters.models import Node
from scheduling.jobs.models import Job
from scheduling.maintenance.backup import MANIFEST, make_backup, restore_backup
from scheduling.maintenance.databases import SqliteCopy, UnusableBackupError, database_copy
from scheduling.storage.directory import DirectoryStorage
from scheduling.storage.objects import ObjectStorage
from tenants.services.tenants import UNKNOWN_UIDS
from tests.factories.scheduling import NOW, make_two_tenants, submit
from tests.factories.tenants import make_tenant
from tests.support.databases import migrated_template, real_database
from tests.support.object_store import object_store

__all__ = ["migrated_template", "object_store", "real_database"]

pytestmark = pytest.mark.usefixtures("real_database")


@pytest.fixture
def database():
    settings = connections.settings["default"]
    if "sqlite" not in settings["ENGINE"]:
        pytest.skip("this is about SQLite; the file of another database is made by its own tools")
    return SqliteCopy(path=Path(settings["NAME"]), alias="default")


@pytest.fixture
def data_dir(tmp_path):
    root = tmp_path / "data"
    for name, text in (
        ("secret_key", "k"),
        ("ssh/id_ed25519", "private"),
        ("rounds/000000/000000001.json.zst", "round"),
        ("logs/1/1/worker-0.log/0", "log"),
        ("redis/dump.rdb", "not ours to keep"),
    ):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "ssh" / "link").symlink_to("/etc/passwd")
    return root


def back_up(tmp_path, data_dir, database, name="b.tar.gz", **options):
    return make_backup(
        target=tmp_path / name, data_dir=data_dir, database=database, now=NOW, **options
    )


def names(path):
    with tarfile.open(path) as archive:
        return set(archive.getnames())


def test_a_backup_holds_the_database_and_the_keys_for_its_owner_alone(
    tmp_path, data_dir, database
):
    report = back_up(tmp_path, data_dir, database)

    assert names(report.path) == {"db.sqlite3", "secret_key", "ssh/id_ed25519", MANIFEST}
    assert stat.S_IMODE(report.path.stat().st_mode) == 0o600
    assert (report.engine, report.files) == ("sqlite", 3)
    assert [path.name for path in tmp_path.iterdir() if "backup" in path.name] == []


def test_rounds_and_logs_come_along_on_request(tmp_path, data_dir, database):
    report = back_up(tmp_path, data_dir, database, with_rounds=True, with_logs=True)

    assert {"rounds/000000/000000001.json.zst", "logs/1/1/worker-0.log/0"} <= names(report.path)


def test_a_backup_never_overwrites_another(tmp_path, data_dir, database):
    back_up(tmp_path, data_dir, database)

    with pytest.raises(FileExistsError):
        back_up(tmp_path, data_dir, database)


def test_what_was_there_comes_back_and_what_came_after_is_gone(tmp_path, data_dir, database):
    make_two_tenants()
    kept = submit(name="kept")
    report = back_up(tmp_path, data_dir, database)
    submit(name="lost")
    (data_dir / "secret_key").write_text("another")

    restore_backup(source=report.path, data_dir=data_dir, database=database)

    assert list(Job.objects.unscoped().values_list("id", "name")) == [(kept.pk, "kept")]
    assert (data_dir / "secret_key").read_text() == "k"
    assert stat.S_IMODE((data_dir / "secret_key").stat().st_mode) == 0o600


def test_the_old_database_stays_beside_the_restored_one(tmp_path, data_dir, database):
    make_two_tenants()
    report = back_up(tmp_path, data_dir, database)
    Node.objects.update(user="changed")

    restore_backup(source=report.path, data_dir=data_dir, database=database)

    old = Path(connections.settings["default"]["NAME"] + ".before-restore")
    with closing(sqlite3.connect(old)) as connection:
        users = {row[0] for row in connection.execute("SELECT user FROM scheduling_node")}
    assert users == {"changed"}


def rewrite(path, change):
    """The backup with its members passed through ``change(name, bytes)``."""
    members = {}
    with tarfile.open(path) as archive:
        for member in archive:
            content = archive.extractfile(member)
            assert content is not None
            members[member.name] = content.read()
    changed = change(members)
    target = path.with_name("changed.tar.gz")
    with tarfile.open(target, "w:gz") as archive:
        for name, content in changed.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return target


def with_manifest(members, **changes):
    manifest = {**json.loads(members[MANIFEST]), **changes}
    return {**members, MANIFEST: json.dumps(manifest).encode()}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: {k: v for k, v in m.items() if k != MANIFEST}, "no manifest"),
        (lambda m: {**m, MANIFEST: b"{"}, "cannot be read"),
        (lambda m: {**m, "secret_key": b"other"}, "damaged or missing"),
        (lambda m: {k: v for k, v in m.items() if k != "secret_key"}, "damaged or missing"),
        (lambda m: {**m, "../escape": b"x"}, "not a regular file"),
        (lambda m: {**m, "/etc/escape": b"x"}, "not a regular file"),
        (lambda m: with_manifest(m, format=2), "format"),
        (lambda m: with_manifest(m, engine="postgresql"), "is of postgresql"),
        (lambda m: with_manifest(m, files={}), "no database"),
        (lambda m: with_manifest(m, migrations=[["scheduling", "9999_x"]]), "newer version"),
        (
            lambda m: with_manifest(m, migrations=[["tenants", "0002_audit_append_only"]]),
            "development version",
        ),
    ],
)
def test_a_backup_that_is_not_whole_or_not_ours_changes_nothing(
    tmp_path, data_dir, database, change, words
):
    make_two_tenants()
    report = back_up(tmp_path, data_dir, database)
    broken = rewrite(report.path, change)
    Node.objects.update(user="present")

    with pytest.raises(UnusableBackupError, match=words):
        restore_backup(source=broken, data_dir=data_dir, database=database)

    assert set(Node.objects.values_list("user", flat=True)) == {"present"}
    assert (data_dir / "secret_key").read_text() == "k"


def test_a_file_that_is_no_archive_is_refused(tmp_path, data_dir, database):
    path = tmp_path / "x"
    path.write_bytes(b"not an archive")

    with pytest.raises(UnusableBackupError):
        restore_backup(source=path, data_dir=data_dir, database=database)


def test_a_truncated_backup_is_refused(tmp_path, data_dir, database):
    report = back_up(tmp_path, data_dir, database)
    path = tmp_path / "half"
    path.write_bytes(report.path.read_bytes()[: report.size // 2])

    with pytest.raises(UnusableBackupError):
        restore_backup(source=path, data_dir=data_dir, database=database)


@pytest.fixture
def commands(settings, data_dir, database, monkeypatch):
    """The commands on this test's database and data directory."""
    from dataclasses import replace

    settings.TESSERA = replace(settings.TESSERA, data_dir=data_dir)
    monkeypatch.setitem(settings.DATABASES, "default", connections.settings["default"])


def test_user_ids_that_tenants_got_after_the_backup_are_not_given_again(
    tmp_path, data_dir, database
):
    make_tenant("vision")
    report = back_up(tmp_path, data_dir, database)
    lost = [make_tenant(name).uid for name in ("language", "audio")]

    restored = restore_backup(source=report.path, data_dir=data_dir, database=database)

    assert restored.newest_uid == lost[-1]
    assert make_tenant("audio").uid == lost[-1] + 1
    again = restore_backup(source=report.path, data_dir=data_dir, database=database)
    assert again.newest_uid == lost[-1] + 1


@pytest.mark.parametrize("replaced", ["missing", "empty"])
def test_user_ids_are_skipped_where_the_replaced_database_does_not_know_them(
    tmp_path, data_dir, database, replaced, migrated_template
):
    uid = make_tenant("vision").uid
    assert uid is not None
    report = back_up(tmp_path, data_dir, database)
    connections.close_all()
    path = Path(connections.settings["default"]["NAME"])
    path.unlink()
    if replaced == "empty":
        shutil.copyfile(migrated_template, path)

    restored = restore_backup(source=report.path, data_dir=data_dir, database=database)

    assert restored.newest_uid == uid + UNKNOWN_UIDS
    assert make_tenant("language").uid == uid + UNKNOWN_UIDS + 1


@pytest.mark.usefixtures("commands")
def test_the_commands_back_up_and_restore(tmp_path, data_dir, capsys):
    make_two_tenants()
    target = tmp_path / "b.tar.gz"
    call_command("backup", str(target), "--rounds")
    Node.objects.all().update(user="changed")
    connections.close_all()

    call_command("restore", str(target), "--yes")

    assert set(Node.objects.values_list("user", flat=True)) == {"tessera"}
    assert "Restored the backup of 20" in capsys.readouterr().out


def test_jobs_after_a_restore_do_not_get_numbers_that_were_given_after_the_backup(
    tmp_path, data_dir, database
):
    make_two_tenants()
    submit()
    report = back_up(tmp_path, data_dir, database)
    after_backup = submit()
    after_backup.delete()

    restored = restore_backup(source=report.path, data_dir=data_dir, database=database)

    assert database.newest_job_id() == restored.newest_job_id == 2
    assert submit().pk == 3


def test_numbers_of_logged_jobs_are_not_given_again_and_a_lost_database_skips_many(
    tmp_path, data_dir, database
):
    make_two_tenants()
    submit()
    report = back_up(tmp_path, data_dir, database)
    (data_dir / "logs/70/1").mkdir(parents=True)
    (data_dir / "logs/²").mkdir()  # a digit to Unicode, and no number

    with_logs = restore_backup(source=report.path, data_dir=data_dir, database=database)
    connections.close_all()
    Path(connections.settings["default"]["NAME"]).unlink()
    lost = restore_backup(source=report.path, data_dir=data_dir, database=database)

    assert with_logs.newest_job_id == 70
    assert lost.newest_job_id == 10_070
    assert submit().pk == 10_071


@pytest.mark.usefixtures("commands")
def test_a_restore_without_a_terminal_says_that_it_needs_yes(tmp_path, data_dir, monkeypatch):
    (tmp_path / "b.tar.gz").write_bytes(b"")
    monkeypatch.setattr("sys.stdin", io.StringIO(""))

    with pytest.raises(CommandError, match=r"no changes were made.*--yes") as refused:
        call_command("restore", str(tmp_path / "b.tar.gz"))

    assert refused.value.returncode == 1


@pytest.mark.usefixtures("commands")
def test_a_restore_is_refused_while_a_supervisor_runs(tmp_path, data_dir):
    target = tmp_path / "b.tar.gz"
    call_command("backup", str(target))
    lock = data_dir / "run" / "supervisor.lock"
    lock.parent.mkdir()

    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(CommandError, match="a supervisor runs"):
            call_command("restore", str(target), "--yes")


@pytest.mark.usefixtures("commands")
def test_a_restore_is_refused_while_another_process_has_the_database_open(tmp_path, database):
    target = tmp_path / "b.tar.gz"
    call_command("backup", str(target))
    path = connections.settings["default"]["NAME"]
    code = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT 1 FROM"
        " sqlite_master'); print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()

        with pytest.raises(CommandError, match=f"process {other.pid} has the database open"):
            call_command("restore", str(target), "--yes")

        other.communicate(b"")
    assert Path(path).exists()


@pytest.mark.pg
def test_a_postgresql_database_is_dumped_and_comes_back(tmp_path, data_dir, settings):
    default = connections.settings["default"]
    if "postgresql" not in default["ENGINE"]:
        pytest.skip("the database is not PostgreSQL")
    make_two_tenants()
    copy = database_copy(default)
    report = make_backup(target=tmp_path / "b", data_dir=data_dir, database=copy, now=NOW)
    Node.objects.update(user="changed")
    connections.close_all()
    assert copy.users() == []

    restore_backup(source=report.path, data_dir=data_dir, database=copy)

    assert set(Node.objects.values_list("user", flat=True)) == {"tessera"}
    with closing(connections.create_connection("default")) as other:
        other.ensure_connection()
        assert [line for line in copy.users() if line.endswith("is open")] != []


def test_a_backup_of_an_object_store_can_be_restored_to_a_directory_and_back(
    tmp_path, database, object_store
):
    first, second = (
        ObjectStorage(object_store.new_bucket(tmp_path / name)) for name in ("a", "b")
    )
    first.put("archives/" + "a" * 64, b"code")
    first.put("rounds/000000/000000001-a.json.zst", b"round")
    first.logs.write("1/1/worker-0.log", offset=0, data=b"text" * 500, cap_bytes=1 << 30)
    (tmp_path / "a" / "ssh").mkdir(parents=True)
    (tmp_path / "a" / "ssh" / "id_ed25519").write_text("private")
    whole = {"with_rounds": True, "with_logs": True}

    report = back_up(tmp_path, tmp_path / "a", database, storage=first, **whole)
    small = back_up(tmp_path, tmp_path / "a", database, name="small.tar.gz", storage=first)
    restore_backup(source=report.path, data_dir=tmp_path / "c", database=database)
    restore_backup(source=report.path, data_dir=tmp_path / "d", database=database, storage=second)

    assert "archives/" + "a" * 64 in names(small.path)
    assert not [name for name in names(small.path) if name.startswith(("rounds", "logs"))]
    assert not (tmp_path / "d" / "logs").exists()
    for storage in (DirectoryStorage(tmp_path / "c"), second):
        assert storage.get("archives/" + "a" * 64) == b"code"
        assert storage.get("rounds/000000/000000001-a.json.zst") == b"round"
        assert storage.logs.read("1/1/worker-0.log", offset=0, limit=9999).data == b"text" * 500
    for name in ("c", "d"):
        assert (tmp_path / name / "ssh" / "id_ed25519").read_text() == "private"


def test_files_of_a_storage_in_another_directory_are_backed_up_and_restored_there(
    tmp_path, data_dir, database
):
    first, second = DirectoryStorage(tmp_path / "nfs"), DirectoryStorage(tmp_path / "other")
    archive = f"archives/{'a' * 64}"
    first.put(archive, b"source")
    first.logs.write("7/1/worker-0.log", offset=0, data=b"log", cap_bytes=1 << 20)

    report = back_up(tmp_path, data_dir, database, storage=first, with_logs=True)
    restore_backup(source=report.path, data_dir=data_dir, database=database, storage=second)

    assert second.get(archive) == b"source"
    assert second.logs.read("7/1/worker-0.log", offset=0, limit=9).data == b"log"
    assert not (data_dir / archive).exists()
