"""Sources come from strangers: what would leave the directory or run something is refused."""

import base64
import hashlib
import io
import os
import stat
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from session import Session, make_spec

from tessera.node import source
from tessera.protocol import ArchiveSource, GitSource, ProtocolError

HOSTILE_URLS = [
    "ext::sh -c touch% HACKED",
    "--upload-pack=touch HACKED",
    "-oProxyCommand=touch",
    "file:///etc",
    "/etc",
    "../x",
    "http://example.org/r.git",
    "git://example.org/r.git",
    "https://alice:hunter2@example.org/r.git",
    "https://-oProxyCommand=x/r",
    "ssh://-oProxyCommand=x/r",
    "ssh://alice@-oProxyCommand=x/r",
    "-x@example.org:r",
    "alice@example.org:-x",
    "alice@example.org::x",
    "https://example.org/a b",
    "https://example.org/a\nb",
    "https://",
    "fd::17",
    "",
]


@pytest.mark.parametrize("url", HOSTILE_URLS)
def test_a_git_address_that_is_more_than_an_address_is_refused(url: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        source.check_git(GitSource(url=url))

    assert (refused.value.code, refused.value.failure) == ("bad-git-url", "user")
    assert "hunter2" not in refused.value.message


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org/team/repository.git",
        "https://example.org:8443/r",
        "https://[2001:db8::1]:8443/team/r.git",
        "ssh://git@example.org:2222/~alice/r.git",
        "ssh://git@[2001:db8::1]/r.git",
        "git@example.org:team/r.git",
    ],
)
@pytest.mark.parametrize("ref", ["", "main", "v1.2", "feature/x", "a" * 40])
def test_plain_addresses_and_refs_are_good(url: str, ref: str) -> None:
    source.check_git(GitSource(url=url, ref=ref))


@pytest.mark.parametrize(
    "ref", ["--upload-pack=x", "-b", "a b", "a..b", "a\nb", "$(x)", "a:b", "^a"]
)
def test_a_ref_that_is_more_than_a_ref_is_refused(ref: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        source.check_git(GitSource(url="https://example.org/r", ref=ref))

    assert refused.value.code == "bad-git-ref"


def test_a_hostile_url_is_refused_by_the_node_and_leaves_nothing(session: Session) -> None:
    spec = make_spec(source_git=GitSource(url="ext::sh -c touch% HACKED"))

    with pytest.raises(ProtocolError) as refused:
        session.prepare(spec)

    assert refused.value.code == "bad-git-url"
    assert session.runs() == []
    assert not list(session.home.rglob("HACKED"))


def test_an_unreachable_repository_is_the_nodes_fault(tmp_path: Path) -> None:
    with pytest.raises(ProtocolError) as failed:
        source.fetch_git(GitSource(url="https://127.0.0.1:1/r.git"), str(tmp_path))

    assert failed.value.failure in {"node", "user"}
    assert failed.value.code in {"git-unreachable", "git-failed"}


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program ssh that runs the command here; the file receives its arguments."""
    programs, noted = tmp_path / "bin", tmp_path / "called"
    programs.mkdir()
    (programs / "ssh").write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" > {noted}\nfor last; do :; done\neval "$last"\n'
    )
    (programs / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return noted


@pytest.mark.parametrize("ref", ["", "side", "tag", "commit"])
@pytest.mark.usefixtures("called")
def test_a_repository_is_fetched_at_the_ref(tmp_path: Path, ref: str) -> None:
    origin, work = tmp_path / "origin", tmp_path / "work"
    work.mkdir()
    commit = make_repository(origin)

    wanted = commit if ref == "commit" else ref
    source.fetch_git(GitSource(url=f"git@example.org:{origin}", ref=wanted), str(work))

    shown = {"": "main", "side": "side", "tag": "first", "commit": "first"}[ref]
    assert (work / "file").read_text() == shown


@pytest.mark.parametrize("url", ["ssh://git@example.org:2222{path}", "git@example.org:{path}"])
def test_a_repository_is_fetched_over_ssh_without_prompts(
    tmp_path: Path, called: Path, url: str
) -> None:
    origin, work = tmp_path / "origin", tmp_path / "work"
    work.mkdir()
    make_repository(origin)

    source.fetch_git(GitSource(url=url.format(path=origin), ref="side"), str(work))

    arguments = called.read_text().splitlines()
    assert (work / "file").read_text() == "side"
    assert "-oBatchMode=yes" in arguments
    assert "git@example.org" in arguments
    assert ("2222" in arguments) == url.startswith("ssh://")


def make_repository(path: Path) -> str:
    """A repository with a tag, a branch and a main line; returns the first commit."""
    path.mkdir()

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=alice", "-c", "user.email=alice@example.org"]
        done = subprocess.run(
            ["git", *identity, *arguments], cwd=path, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    git("init", "--quiet", "--initial-branch=main")
    git("config", "uploadpack.allowAnySHA1InWant", "true")
    for number, text in enumerate(("first", "side", "main")):
        if text == "side":
            git("checkout", "--quiet", "-b", "side")
        if text == "main":
            git("checkout", "--quiet", "main")
        (path / "file").write_text(text)
        git("add", "file")
        git("commit", "--quiet", "-m", text)
        if number == 0:
            git("tag", "tag")
    return git("rev-parse", "tag")


# -- archives ------------------------------------------------------------------------------------


def tar_of(*members: tuple[str, bytes | str | None, bytes]) -> bytes:
    """Members are (name, content or link target, tar type)."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as archive:
        for name, content, kind in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            if isinstance(content, bytes):
                info.size = len(content)
                info.mode = 0o755
                archive.addfile(info, io.BytesIO(content))
            else:
                info.linkname = content or ""
                archive.addfile(info)
    return target.getvalue()


def zip_of(*members: tuple[str, bytes, int]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, content, mode in members:
            info = zipfile.ZipInfo(name)
            info.create_system = 3
            info.external_attr = mode << 16
            archive.writestr(info, content)
    return target.getvalue()


FILE, LINK, HARD, FIFO, DIR = (
    tarfile.REGTYPE,
    tarfile.SYMTYPE,
    tarfile.LNKTYPE,
    tarfile.FIFOTYPE,
    tarfile.DIRTYPE,
)

HOSTILE = {
    "absolute": tar_of(("/tmp/x", b"x", FILE)),
    "up": tar_of(("../x", b"x", FILE)),
    "up inside": tar_of(("a/../../x", b"x", FILE)),
    "link out": tar_of(("a", "/etc", LINK)),
    "link up": tar_of(("a", "../..", LINK)),
    "through a link": tar_of(("a", ".", LINK), ("a/x", b"x", FILE)),
    "link below a link": tar_of(("d/e/f", b"", FILE), ("l", "d/e", LINK), ("l/m", "..", LINK)),
    "chain of links": tar_of(("a/b/f", b"", FILE), ("d", "a/b", LINK), ("x", "d/../../..", LINK)),
    "links that meet outside": tar_of(
        ("a/b/c/f", b"", FILE), ("a/b/d", "..", LINK), ("a/y", "b/d/../../x", LINK)
    ),
    "file over directory": tar_of(("a/b", b"x", FILE), ("a", b"x", FILE)),
    "directory over file": tar_of(("a", b"x", FILE), ("a/b", b"x", FILE)),
    "link over file": tar_of(("a", b"x", FILE), ("a", "b", LINK)),
    "hard link": tar_of(("a", "/etc/passwd", HARD)),
    "fifo": tar_of(("a", None, FIFO)),
    "zip up": zip_of(("../x", b"x", stat.S_IFREG | 0o644)),
    "zip absolute": zip_of(("/x", b"x", stat.S_IFREG | 0o644)),
    "zip backslash": zip_of(("..\\x", b"x", stat.S_IFREG | 0o644)),
    "zip link out": zip_of(("a", b"/etc", stat.S_IFLNK | 0o777)),
    "zip device": zip_of(("a", b"", stat.S_IFCHR | 0o777)),
}


def unpack(tmp_path: Path, content: bytes, **limits: int) -> Path:
    blobs, work = tmp_path / "blobs", tmp_path / "outer" / "work"
    blobs.mkdir()
    work.mkdir(parents=True)
    sha256 = hashlib.sha256(content).hexdigest()
    (blobs / sha256).write_bytes(content)
    source.unpack(ArchiveSource(sha256=sha256), str(work), str(blobs), **limits)
    return work


@pytest.mark.parametrize("name", HOSTILE)
def test_an_archive_that_would_leave_its_directory_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        unpack(tmp_path, HOSTILE[name])

    assert refused.value.failure == "user"
    assert refused.value.code == "unsafe-archive"
    assert [path.name for path in (tmp_path / "outer").iterdir()] == ["work"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda good: b"",
        lambda good: b"not an archive" * 100,
        lambda good: good[: len(good) // 2],
        lambda good: good[:40] + bytes(40) + good[80:],
        lambda good: b"PK\x03\x04" + good,
    ],
)
def test_a_damaged_archive_is_the_users_fault(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    good = tar_of(*[(f"f{number}", bytes(range(256)) * 40, FILE) for number in range(9)])

    with pytest.raises(ProtocolError) as refused:
        unpack(tmp_path, damage(good))

    assert (refused.value.code, refused.value.failure) == ("bad-archive", "user")


def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProtocolError) as refused:
        unpack(tmp_path, tar_of(("zeros", bytes(2 << 20), FILE)), most_bytes=1 << 20)

    assert refused.value.code == "archive-too-large"


def test_good_archives_are_unpacked_with_links_and_modes(tmp_path: Path) -> None:
    work = unpack(
        tmp_path,
        tar_of(
            ("./", None, DIR),
            ("./src/run.sh", b"#!/bin/sh\n", FILE),
            ("./current", "src", LINK),
            ("./src/up", "../src/run.sh", LINK),
        ),
    )

    assert (work / "current" / "run.sh").read_bytes() == b"#!/bin/sh\n"
    assert (work / "src" / "up").resolve() == (work / "src" / "run.sh").resolve()
    assert (work / "src" / "run.sh").stat().st_mode & 0o111


def test_a_zip_is_unpacked(tmp_path: Path) -> None:
    work = unpack(tmp_path, zip_of(("a/b.py", b"print(1)", stat.S_IFREG | 0o644), ("c/", b"", 0)))

    assert (work / "a" / "b.py").read_bytes() == b"print(1)"
    assert (work / "c").is_dir()


def test_an_archive_is_uploaded_in_pieces_and_run(session: Session) -> None:
    content = tar_of(("project/main.sh", b"echo from the archive\n" + b"#" * 300_000, FILE))
    sha256 = hashlib.sha256(content).hexdigest()
    spec = make_spec("sh main.sh", source_archive=ArchiveSource(sha256=sha256), workdir="project")
    with pytest.raises(ProtocolError, match="was not uploaded"):
        session.prepare(spec)

    upload(session, content, sha256)
    session.start(spec)
    session.exit_of(spec)

    assert session.log(spec) == "from the archive\n"
    kept = session.ask("blob", sha256=sha256)
    assert (kept["have"], kept["complete"]) == (len(content), True)


def upload(session: Session, content: bytes, sha256: str) -> None:
    size = 500
    for offset in range(0, len(content), size):
        data = base64.b64encode(content[offset : offset + size]).decode()
        session.ask("blob", sha256=sha256, offset=offset, data=data)
    repeated = session.ask("blob", sha256=sha256, offset=0, data=data)
    assert (repeated["have"], repeated["complete"]) == (len(content), False)
    assert session.ask("blob", sha256=sha256, last=True)["complete"] is True


def test_an_upload_with_another_hash_is_refused_and_forgotten(session: Session) -> None:
    with pytest.raises(ProtocolError) as refused:
        session.ask("blob", sha256="a" * 64, offset=0, data="eHg=", last=True)

    assert refused.value.code == "bad-blob"
    assert session.ask("blob", sha256="a" * 64)["have"] == 0


def test_two_concurrent_uploads_of_one_archive_both_succeed(
    session: Session,
) -> None:
    content = b"x" * 5_000_000
    sha256 = hashlib.sha256(content).hexdigest()
    for offset in range(0, len(content), 500_000):
        data = base64.b64encode(content[offset : offset + 500_000]).decode()
        session.ask("blob", sha256=sha256, offset=offset, data=data)

    numbers = [session.send("blob", sha256=sha256, last=True) for _ in range(8)]
    replies = [session.reply(number) for number in numbers]

    assert [reply.get("complete") for reply in replies] == [True] * 8, replies
