"""Uploaded archives go some time after their last use, and their files with the last row."""

import os
from datetime import timedelta
from typing import Any

import pytest

from scheduling.jobs.models import SourceArchive
from scheduling.jobs.services.archives import ARCHIVES_DIR, prune_archives
from scheduling.maintenance.retention import Pruned, Retention, prune
from scheduling.storage.directory import DirectoryStorage
from tenants.audit import Actor
from tenants.models import AuditEntry, Tenant, User
from tests.factories.scheduling import NOW, end, make_two_tenants, start, submit

pytestmark = pytest.mark.django_db

DAY = timedelta(days=1)
DIGEST = "ab" * 32
TENANTS = {"alice": "vision", "bob": "language"}


@pytest.fixture(autouse=True)
def clusters():
    return make_two_tenants()


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / ARCHIVES_DIR
    path.mkdir()
    return path


def add(folder, owner="alice", digest=DIGEST):
    tenant = Tenant.objects.unscoped().get(name=TENANTS[owner])
    store(folder / digest)
    return SourceArchive.objects.unscoped().create(
        tenant=tenant,
        owner=User.objects.get(username=owner),
        sha256=digest,
        name="code.tgz",
        size=4,
        created_at=NOW,
    )


def store(path, at=NOW):
    path.write_bytes(b"code")
    os.utime(path, (at.timestamp(), at.timestamp()))


def forget(folder, days):
    now = NOW + days * DAY
    return prune_archives(
        storage=DirectoryStorage(folder.parent), older_than=now - 30 * DAY, now=now
    )


def test_an_archive_that_no_job_has_used_goes_with_its_file(folder):
    add(folder)

    assert forget(folder, 29) == 0
    assert forget(folder, 31) == 1
    assert not SourceArchive.objects.unscoped().exists()
    assert list(folder.iterdir()) == []


def test_a_job_that_lives_keeps_its_archive_and_one_that_has_ended_for_a_while(folder):
    add(folder)
    job = submit(source={"archive": DIGEST})
    start(job)

    assert forget(folder, 300) == 0
    end(job, at=NOW + 300 * DAY)

    assert forget(folder, 329) == 0
    assert forget(folder, 331) == 1


def test_an_upload_of_the_same_bytes_renews_it(folder):
    add(folder)
    store(folder / DIGEST, NOW + 20 * DAY)

    assert forget(folder, 49) == 0
    assert forget(folder, 51) == 1


def test_the_use_by_one_tenant_keeps_the_file_but_not_the_row_of_another(folder):
    add(folder, "alice")
    add(folder, "bob")
    submit("bob", source={"archive": DIGEST}, held=True)

    assert forget(folder, 31) == 1
    assert SourceArchive.objects.unscoped().get().owner.username == "bob"
    assert (folder / DIGEST).is_file()


def test_what_a_broken_upload_left_goes_unless_it_is_fresh(folder):
    store(folder / ".upload-old")
    store(folder / ".upload-new", NOW + 31 * DAY)

    assert forget(folder, 31) == 0
    assert [path.name for path in folder.iterdir()] == [".upload-new"]


def test_pruning_forgets_archives_and_says_so_unless_they_are_kept_for_ever(tmp_path, folder):
    add(folder)
    later: Any = {
        "storage": DirectoryStorage(tmp_path),
        "now": NOW + 31 * DAY,
        "actor": Actor.system("tests"),
    }

    assert prune(retention=Retention(archives=None), **later) == Pruned()
    assert prune(retention=Retention(), **later) == Pruned(archives=1)
    assert AuditEntry.objects.unscoped().get(action="history.prune").after["archives"] == 1
