"""Source of a job in its working directory: a git repository or an uploaded archive.

Addresses and archives come from users. Git gets an allow-list of protocols, never prompts, and
gets no argument that could be an option. Of an archive only plain files and directories with paths
that stay inside are written, plus links that point inside.

``tarfile`` and ``zipfile`` are imported on use: loading them would make each fork of the server
take 0.8 ms longer.
"""

from __future__ import annotations

import os
import re
import stat
from typing import IO, Dict, List, Optional

from tessera import protocol
from tessera.protocol import ArchiveSource, GitSource, ProtocolError, RunSpec

MAX_FILES = 200_000
MAX_BYTES = 32 << 30
_CHUNK = 1 << 20
GIT_SECONDS = 900
_HOST = r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?"
_HTTPS = re.compile(rf"https://{_HOST}/[^\s\x00-\x1f]*")
_SSH = re.compile(rf"ssh://(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?{_HOST}/[^\s\x00-\x1f]*")
_SCP = re.compile(
    r"[A-Za-z0-9_][A-Za-z0-9_.-]*@[A-Za-z0-9][A-Za-z0-9.-]*:[^\s\x00-\x1f:-][^\s\x00-\x1f]*"
)
_REF = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+@-]{0,254}")
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def fetch(spec: RunSpec, work: str, blobs: str) -> None:
    """Fetch the source of a run into its working directory.

    Raises:
        ProtocolError: the source is refused or cannot be fetched.
    """
    if spec.source_git is not None:
        fetch_git(spec.source_git, work)
    elif spec.source_archive is not None:
        unpack(spec.source_archive, work, blobs)


def refused(code: str, message: str) -> ProtocolError:
    """Build the error for a source that its user has to fix."""
    return ProtocolError(code, message, protocol.USER)


# -- git -----------------------------------------------------------------------------------------


def check_git(source: GitSource) -> None:
    """Check that an address and a ref are valid.

    Raises:
        ProtocolError: another protocol than https and ssh, an option, or not a ref.
    """
    if not any(form.fullmatch(source.url) for form in (_HTTPS, _SSH, _SCP)):
        message = (
            "use a git URL https://host/path, ssh://host/path or user@host:path without a password"
        )
        raise refused("bad-git-url", message)
    if source.ref and (not _REF.fullmatch(source.ref) or ".." in source.ref):
        raise refused("bad-git-ref", "not a branch, tag or commit")


def git_environment() -> Dict[str, str]:
    """Return the environment of git: no prompts, and no protocol but https and ssh."""
    kept = ("PATH", "HOME", "USER", "LANG", "LD_LIBRARY_PATH", "TMPDIR", "SSH_AUTH_SOCK")
    proxies = ("https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY", "SSL_CERT_FILE")
    return {
        **{name: os.environ[name] for name in kept + proxies if name in os.environ},
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "/bin/false",
        "GIT_ALLOW_PROTOCOL": "https:ssh",
        "GIT_SSH_COMMAND": "ssh -oBatchMode=yes -oConnectTimeout=20",
        "LC_ALL": "C",
    }


def fetch_git(source: GitSource, work: str) -> None:
    """Clone a repository at a ref, one commit deep.

    Raises:
        ProtocolError: the address is refused, or git failed.
    """
    check_git(source)
    clone = ["git", "clone", "--quiet", "--depth=1", "--no-tags", "--config=core.symlinks=true"]
    if not source.ref:
        _git([*clone, "--", source.url, "."], work)
    elif _COMMIT.fullmatch(source.ref):
        _git(["git", "init", "--quiet", "."], work)
        _git(["git", "fetch", "--quiet", "--depth=1", "--", source.url, source.ref], work)
        _git(["git", "checkout", "--quiet", "--detach", "FETCH_HEAD"], work)
    else:
        _git([*clone, f"--branch={source.ref}", "--", source.url, "."], work)


def _git(arguments: List[str], work: str) -> None:
    import subprocess  # noqa: PLC0415 - costs start-up time that only this path needs

    try:
        done = subprocess.run(
            arguments,
            cwd=work,
            env=git_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=GIT_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise ProtocolError("no-git", "git is not installed on this node", protocol.NODE) from None
    except subprocess.TimeoutExpired:
        message = f"git took longer than {GIT_SECONDS} s"
        raise ProtocolError("git-timeout", message, protocol.NODE) from None
    if done.returncode:
        raise _git_error(done.stdout.decode("utf-8", "replace"))


def _git_error(output: str) -> ProtocolError:
    text = _without_credentials(output.strip())[-2000:]
    if "No space left on device" in output:
        return ProtocolError("disk-full", text, protocol.NODE)
    unreachable = ("Could not resolve host", "Connection timed out", "Connection refused")
    if any(sign in output for sign in (*unreachable, "Network is unreachable")):
        return ProtocolError("git-unreachable", text, protocol.NODE)
    return refused("git-failed", text or "git failed without a message")


def _without_credentials(text: str) -> str:
    return re.sub(r"(://)[^/\s@]*@", r"\1", text)


# -- archives ------------------------------------------------------------------------------------


def unpack(source: ArchiveSource, work: str, blobs: str, most_bytes: int = MAX_BYTES) -> None:
    """Unpack an uploaded archive to at most ``most_bytes`` bytes.

    Raises:
        ProtocolError: the file is missing, is not an archive, or tries to leave the directory.
    """
    import zipfile  # noqa: PLC0415 - see above

    path = os.path.join(blobs, protocol.check_sha256(source.sha256))
    if not os.path.isfile(path):
        raise ProtocolError("no-blob", f"archive {source.sha256} was not uploaded")
    os.utime(path)
    writer = _Writer(work, most_bytes)
    try:
        if zipfile.is_zipfile(path):
            _unzip(path, writer)
        else:
            _untar(path, writer)
    except ProtocolError:
        raise
    except OSError as error:
        if error.errno is None:  # gzip raises OSError without errno for a damaged stream
            raise refused("bad-archive", "the archive is damaged") from None
        raise
    except Exception as error:  # compression modules raise various errors for hostile input
        message = f"not a readable tar.gz or zip archive ({type(error).__name__})"
        raise refused("bad-archive", message) from None


def _untar(path: str, writer: _Writer) -> None:
    import tarfile  # noqa: PLC0415 - see above

    with tarfile.open(path, "r:*") as archive:
        for member in archive:
            if member.isdir():
                writer.directory(member.name)
            elif member.issym():
                writer.link(member.name, member.linkname)
            elif member.isreg():
                content = archive.extractfile(member)
                if content is not None:
                    writer.file(member.name, content, executable=bool(member.mode & 0o100))
            else:
                raise refused(
                    "unsafe-archive", f"{member.name!r} is not a file, directory or link"
                )
    writer.finish()


def _unzip(path: str, writer: _Writer) -> None:
    import zipfile  # noqa: PLC0415 - see above

    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            mode = member.external_attr >> 16
            if stat.S_ISLNK(mode):
                if member.file_size > 4096:
                    raise refused("unsafe-archive", f"{member.filename!r}: link too long")
                writer.link(member.filename, archive.read(member).decode("utf-8"))
            elif member.is_dir():
                writer.directory(member.filename)
            elif stat.S_IFMT(mode) in (0, stat.S_IFREG):
                with archive.open(member) as content:
                    writer.file(member.filename, content, executable=bool(mode & 0o100))
            else:
                name = member.filename
                raise refused("unsafe-archive", f"{name!r} is not a file, directory or link")
    writer.finish()


class _Writer:
    """Writes archive members below one directory only.

    Links are created last, so that no member can be written through one.
    """

    def __init__(self, work: str, most_bytes: int) -> None:
        self._work = work
        self._links: Dict[str, str] = {}
        self._files = 0
        disk = os.statvfs(work)
        self._room = min(most_bytes, disk.f_bavail * disk.f_frsize)

    def _inside(self, name: str) -> Optional[str]:
        """Return the checked path of a member; None for the directory itself."""
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if name.startswith("/") or ".." in parts or "\0" in name or "\\" in name:
            raise refused("unsafe-archive", f"{name[:200]!r} is outside the directory")
        self._files += 1
        if self._files > MAX_FILES:
            raise refused("archive-too-large", f"more than {MAX_FILES} files")
        return os.path.join(self._work, *parts) if parts else None

    def directory(self, name: str) -> None:
        path = self._inside(name)
        if path is not None:
            self._make(path)

    def _make(self, path: str) -> None:
        try:
            os.makedirs(path, mode=0o755, exist_ok=True)
        except FileExistsError:
            raise refused("unsafe-archive", "a file and a directory have the same name") from None
        except NotADirectoryError:
            raise refused("unsafe-archive", "a file and a directory have the same name") from None

    def file(self, name: str, content: IO[bytes], *, executable: bool) -> None:
        path = self._inside(name)
        if path is None:
            raise refused("unsafe-archive", "a file needs a name")
        self._make(os.path.dirname(path))
        if os.path.isdir(path):
            raise refused("unsafe-archive", "a file and a directory have the same name")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        mode = 0o755 if executable else 0o644
        with os.fdopen(os.open(path, flags, mode), "wb") as target:
            self._copy(content, target)

    def _copy(self, content: IO[bytes], target: IO[bytes]) -> None:
        while True:
            chunk = content.read(_CHUNK)
            if not chunk:
                return
            self._room -= len(chunk)
            if self._room < 0:
                raise refused("archive-too-large", "the unpacked archive exceeds the size limit")
            target.write(chunk)

    def link(self, name: str, target: str) -> None:
        path = self._inside(name)
        if path is None:
            raise refused("unsafe-archive", "a link needs a name")
        aim = os.path.normpath(os.path.join(os.path.dirname(path), target))
        if target.startswith("/") or "\0" in target or not _below(aim, self._work):
            raise refused("unsafe-archive", f"the link {name[:200]!r} points outside")
        self._links[path] = target

    def finish(self) -> None:
        """Create the links, and check that none of them, through others, leads outside."""
        for path in self._links:
            if self._through_a_link(os.path.dirname(path)):
                raise refused("unsafe-archive", "a link is inside another link")
        for path, target in self._links.items():
            self._make(os.path.dirname(path))
            if os.path.lexists(path):
                raise refused("unsafe-archive", "a link and a file have the same name")
            os.symlink(target, path)
        work = os.path.realpath(self._work)
        for path in self._links:
            if not _below(os.path.realpath(path), work):
                raise refused("unsafe-archive", "a link points outside through another link")

    def _through_a_link(self, path: str) -> bool:
        while len(path) > len(self._work):
            if path in self._links:
                return True
            path = os.path.dirname(path)
        return False


def _below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")
