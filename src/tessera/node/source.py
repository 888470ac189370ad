"""Fetches a job's source into its working directory: a git repository or an uploaded archive.

Addresses come from users. Git gets an allow-list of protocols, never prompts, and gets
no argument that could be an option.
"""

from __future__ import annotations

import os
import re
from typing import Dict, List

from tessera import protocol
from tessera.node import archives
from tessera.node.archives import refused
from tessera.protocol import GitSource, ProtocolError, RunSpec

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
        ProtocolError: it is refused or cannot be fetched.
    """
    if spec.source_git is not None:
        fetch_git(spec.source_git, work)
    elif spec.source_archive is not None:
        archives.unpack(spec.source_archive, work, blobs)


# -- git -----------------------------------------------------------------------------------------


def check_git(source: GitSource) -> None:
    """Check that an address and a ref are valid.

    Raises:
        ProtocolError: another protocol than https and ssh, an option, or not a ref.
    """
    if not any(form.fullmatch(source.url) for form in (_HTTPS, _SSH, _SCP)):
        message = (
            "a git url is https://host/path, ssh://host/path or user@host:path, no password in it"
        )
        raise refused("bad-git-url", message)
    if source.ref and (not _REF.fullmatch(source.ref) or ".." in source.ref):
        raise refused("bad-git-ref", "not a branch, tag or commit")


def git_environment() -> Dict[str, str]:
    """Environment of git: no prompts, and no protocol but https and ssh."""
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
        raise ProtocolError("no-git", "this node has no git", protocol.NODE) from None
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
    return refused("git-failed", text or "git failed and said nothing")


def _without_credentials(text: str) -> str:
    return re.sub(r"(://)[^/\s@]*@", r"\1", text)
