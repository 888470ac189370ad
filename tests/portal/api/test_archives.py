"""``/api/v1/archives/``: uploads are checked, stored once and usable in jobs of the tenant."""

import dataclasses
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.files.uploadedfile import SimpleUploadedFile

from scheduling.jobs.models import SourceArchive
from scheduling.jobs.services import archives
from tenants.roles import Role, Scope
from tests.factories.cluster import job_document
from tests.factories.tenants import make_tenant

URL = "/api/v1/archives/"
GZIP, ZIP = "application/gzip", "application/zip"
Problem = Callable[..., Any]


@pytest.fixture(autouse=True)
def stored(api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    moved = dataclasses.replace(settings.TESSERA, data_dir=tmp_path)
    monkeypatch.setattr(settings, "TESSERA", moved)
    return tmp_path / "archives"


def tar_gz(*names: str, link: tuple[str, str] | None = None, kind: bytes | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.type = kind or tarfile.REGTYPE
            member.size = 0 if kind else 4
            archive.addfile(member, io.BytesIO(b"text") if not kind else None)
        if link:
            member = tarfile.TarInfo(link[0])
            member.type, member.linkname = tarfile.SYMTYPE, link[1]
            archive.addfile(member)
    return buffer.getvalue()


def zipped(*names: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in names:
            archive.writestr(name, "text")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (tar_gz("train.py", "lib/a.py", link=("b", "lib/a.py")), GZIP),
        (zipped("train.py", "lib/a.py"), ZIP),
        (tar_gz("a"), "application/octet-stream"),
    ],
)
def test_an_archive_is_stored_under_its_digest_and_a_job_may_name_it(
    api: Any, stored: Path, content: bytes, kind: str
) -> None:
    response = api("alice").post(f"{URL}?name=code.tgz", content, content_type=kind)

    body = response.json()
    digest = hashlib.sha256(content).hexdigest()
    assert response.status_code == 201, body
    assert (body["sha256"], body["size"], body["name"]) == (digest, len(content), "code.tgz")
    assert [path.name for path in stored.iterdir()] == [digest]
    assert (stored / digest).read_bytes() == content
    document = job_document(source={"archive": digest})
    assert api("alice").post("/api/v1/jobs/", document).status_code == 201


def test_the_same_bytes_again_are_the_same_archive(api: Any) -> None:
    content = tar_gz("a")

    first = api("alice").post(URL, content, content_type=GZIP)
    again = api("lena").post(URL, content, content_type=GZIP)

    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]


def test_a_form_may_carry_the_file(api: Any, problem: Problem) -> None:
    upload = SimpleUploadedFile("code.zip", zipped("a"))

    response = api("alice").post(URL, {"file": upload}, format="multipart")

    assert response.json()["name"] == "code.zip"
    body = problem(api("alice").post(URL, {"other": "x"}, format="multipart"), 400)
    assert body["errors"][0]["field"] == "other"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no archive",
        tar_gz("a")[:-20],
        tar_gz(),
        tar_gz("/etc/passwd"),
        tar_gz("../up"),
        tar_gz("a/../../up"),
        tar_gz("a\\b"),
        tar_gz("a", link=("b", "/etc/passwd")),
        tar_gz("a", link=("d/b", "../../up")),
        tar_gz("pipe", kind=tarfile.FIFOTYPE),
        tar_gz("device", kind=tarfile.CHRTYPE),
        zipped("../up"),
        zipped("/abs"),
    ],
)
def test_what_is_no_safe_archive_is_refused_and_not_kept(
    api: Any, problem: Problem, stored: Path, content: bytes
) -> None:
    body = problem(api("alice").post(URL, content, content_type=GZIP), 400)

    assert body["errors"][0]["field"] == "file"
    assert list(stored.iterdir()) == []
    assert not SourceArchive.objects.unscoped().exists()


def test_an_archive_that_is_too_large_is_refused(
    api: Any, problem: Problem, stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = archives.store_archive.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "most_bytes", 10)

    body = problem(api("alice").post(URL, tar_gz("a"), content_type=GZIP), 413)

    assert body["code"] == "too-large"
    assert list(stored.iterdir()) == []


def test_a_tenant_keeps_only_so_many_bytes_of_archives(
    api: Any, problem: Problem, stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tar_gz("a"), tar_gz("another.py")
    room = dataclasses.replace(settings.TESSERA, archive_bytes=len(first) + len(second) - 1)
    monkeypatch.setattr(settings, "TESSERA", room)
    assert api("alice").post(URL, first, content_type=GZIP).status_code == 201

    body = problem(api("alice").post(URL, second, content_type=GZIP), 413)

    (fault,) = body["errors"]
    assert (body["code"], fault["field"], fault["value"]) == ("archives-full", "file", len(second))
    assert f"{len(first):,} bytes" in fault["message"]
    assert fault["remedy"]
    assert [path.name for path in stored.iterdir()] == [hashlib.sha256(first).hexdigest()]
    assert api("alice").post(URL, first, content_type=GZIP).status_code == 200
    assert api("bob").post(URL, second, content_type=GZIP).status_code == 201


def test_whoever_may_not_submit_may_not_upload(api: Any, problem: Problem) -> None:
    content = tar_gz("a")

    problem(api("vera").post(f"{URL}?tenant=vision", content, content_type=GZIP), 403)
    problem(api("alice").post(f"{URL}?tenant=language", content, content_type=GZIP), 404)
    script = api("alice", Scope.JOBS_READ)
    problem(script.post(f"{URL}?tenant=vision", content, content_type=GZIP), 403)


def test_one_who_is_in_several_tenants_names_one(api: Any, problem: Problem) -> None:
    make_tenant("robots", alice=Role.MEMBER)

    body = problem(api("alice").post(URL, tar_gz("a"), content_type=GZIP), 400)

    assert body["errors"][0]["field"] == "tenant"


def test_another_tenants_archives_are_not_seen_and_not_usable(api: Any, problem: Problem) -> None:
    digest = api("alice").post(URL, tar_gz("a"), content_type=GZIP).json()["sha256"]

    assert api("bob").get(URL).json()["results"] == []
    assert len(api("alice").get(URL).json()["results"]) == 1
    document = job_document(virtual_cluster="language-a", source={"archive": digest})
    problem(api("bob").post("/api/v1/jobs/", document), 400)
