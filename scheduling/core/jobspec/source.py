"""Sources of code: addresses that git commands cannot mistake for options."""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from scheduling.core.jobspec.errors import DocumentPlace, RefusalError, show
from scheduling.core.jobspec.scalars import is_unprintable, read_bounded, read_matching
from scheduling.core.jobspec.table import OBJECT, Field, read_object, text_schema
from scheduling.core.jobspec.values import ArchiveSource, GitSource
from scheduling.core.messages import sentence

_HOST: Final = re.compile(
    r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\]"
)
_USER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_SCP: Final = re.compile(r"([^/@:]*)@([^/@:]*):([^-].*)", re.DOTALL)
_REF: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/+-]{0,199}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_REMEDY: Final = sentence("write-git-address")


def read_source(value: object, place: DocumentPlace) -> GitSource | ArchiveSource | None:
    """Read the source of a job's code; return None if it has none.

    Raises:
        RefusalError: the value names two sources, or none at all.
    """
    if value == "none":
        return None
    given = read_object(value, SOURCE_FIELDS, place)
    if len(given) > 1:
        raise RefusalError(sentence("two-sources"), sentence("keep-one-source"), "conflict")
    if not given and isinstance(value, Mapping) and not any(value.values()):
        raise RefusalError(sentence("no-source"), sentence("write-source"), "missing-field")
    source: GitSource | ArchiveSource | None = given.get("git", given.get("archive"))
    return source


def _git(value: object, place: DocumentPlace) -> GitSource | None:
    given = read_object(value, GIT_FIELDS, place)
    return GitSource(**given) if "url" in given else None


def _read_archive(value: object, _place: DocumentPlace) -> ArchiveSource:
    """Read the SHA-256 of an uploaded archive."""
    remedy = sentence("write-digest")
    return ArchiveSource(digest=read_matching(value, _DIGEST, remedy))


def _read_ref(value: object, _place: DocumentPlace) -> str:
    """Read a branch, tag or commit that git cannot mistake for an option or a range."""
    remedy = sentence("write-ref")
    ref = read_matching(value, _REF, remedy)
    if ".." in ref or "//" in ref or ref.endswith(("/", ".", ".lock")):
        raise RefusalError(sentence("not-ref"), remedy)
    return ref


def _read_url(value: object, _place: DocumentPlace) -> str:
    """Read the https or ssh URL of a git repository; it must not contain a password."""
    url = read_bounded(value, 2048, _REMEDY)
    if any(char.isspace() or is_unprintable(char) for char in url) or "\\" in url:
        raise RefusalError(sentence("has-spaces-or-unprintable"), _REMEDY, shown=_safe(url))
    scheme, found, _rest = url.partition("://")
    if found and scheme in ("https", "ssh"):
        _check_url(url)
    elif found or not _is_scp_like(url):
        raise RefusalError(sentence("not-git-address"), _REMEDY, shown=_safe(url))
    return url


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        user, host, _port = parts.username, parts.hostname, parts.port
    except ValueError:
        raise RefusalError(sentence("not-address"), _REMEDY, shown=_safe(url)) from None
    if parts.password is not None or (parts.scheme == "https" and user is not None):
        raise RefusalError(
            sentence("address-has-login"),
            sentence("omit-login"),
            shown=_safe(url),
        )
    bracketed = f"[{host}]" if host and ":" in host else host or ""
    if not _HOST.fullmatch(bracketed) or (user is not None and not _USER.fullmatch(user)):
        raise RefusalError(sentence("no-host"), _REMEDY, shown=_safe(url))
    if len(parts.path) < 2 or parts.query or parts.fragment or parts.path.startswith("/-"):
        raise RefusalError(sentence("no-repository"), _REMEDY, shown=_safe(url))


def _is_scp_like(url: str) -> bool:
    match = _SCP.fullmatch(url)
    return bool(match and _USER.fullmatch(match[1]) and _HOST.fullmatch(match[2]))


def _safe(url: str) -> str:
    """Remove the user information before the last ``@`` of the host from a URL."""
    return show(re.sub(r"//[^/]*@", "//…@", url))


GIT_FIELDS: Final = (
    Field(
        name="url",
        type="git address",
        required=True,
        help=sentence("help-git-url"),
        read=_read_url,
        schema=text_schema(2048),
    ),
    Field(
        name="ref",
        type="text",
        default="default branch",
        help="Branch, tag or commit.",
        read=_read_ref,
        schema=text_schema(200),
    ),
)

SOURCE_FIELDS: Final = (
    Field(
        name="git",
        type="object",
        default="none",
        help="Fetch a git repository into the working directory.",
        read=_git,
        schema=OBJECT,
        fields=GIT_FIELDS,
    ),
    Field(
        name="archive",
        type="SHA-256",
        default="none",
        help="SHA-256 of an uploaded archive, which Tessera unpacks into the working directory.",
        read=_read_archive,
        schema={"type": "string", "pattern": "^[0-9a-f]{64}$"},
    ),
)
