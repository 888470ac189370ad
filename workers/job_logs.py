"""Logs of jobs for pages and REST; each function takes the viewer."""

import socket
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from scheduling.core.messages import message, sentence
from scheduling.enums import MemberStep
from scheduling.jobs.queries.jobs import visible_job
from scheduling.runs.models import Member
from scheduling.storage.base import FileStorage, StorageUnavailableError
from tenants.errors import DomainError, InvalidError, NotFoundError
from tenants.viewers import Viewer
from workers.models import LogStream
from workers.services import logs

MOST_LOG_BYTES: Final = 1 << 20
LONGEST_SEARCH: Final = 200
_LEAST_LOG_BYTES: Final = logs.LONGEST_CHARACTER


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPiece:
    """A piece of one rank's log. Offsets are in bytes and never inside a character.

    Attributes:
        attempt: number of the attempt; 0 before the first.
        offset: start of ``text``: later than requested if older bytes were dropped.
        next_offset: start of the next piece.
        size: number of fetched bytes of the log.
        first: current beginning of the log.
        end: nothing more will come after ``next_offset``.
    """

    role: str
    rank: int
    attempt: int
    text: str
    offset: int
    next_offset: int
    size: int
    first: int
    end: bool


_ASK_THERE: Final = sentence("ask-portal-on-host")


class LogElsewhereError(DomainError):
    """Another host has the fetched bytes of the log."""

    code = "log-elsewhere"
    status = 503
    title: ClassVar[str] = sentence("host-not-hold-log")
    retry_after = 5

    @classmethod
    def of(cls, stream: LogStream, held: int) -> "LogElsewhereError":
        """Build the error for a log of which this host has only the bytes before ``held``."""
        here = socket.gethostname()
        if stream.host == here:
            where, remedy = (
                message("log-missing-on", host=here),
                sentence("restore-data-directory"),
            )
        elif stream.host:
            where, remedy = message("log-on-host", host=stream.host), _ASK_THERE
        else:
            where, remedy = message("log-on-another-host"), _ASK_THERE
        fault = sentence("log-part-held", held=held, end=stream.end, where=where)
        return cls(fault, field="offset", remedy=remedy)


class LogUnreadableError(DomainError):
    """The object store does not respond, or lacks bytes of the log that were stored."""

    code = "log-unreadable"
    status = 503
    title: ClassVar[str] = sentence("log-temporarily-unreadable")
    retry_after = 5

    @classmethod
    def while_unavailable(cls) -> "LogUnreadableError":
        return cls(
            sentence("file-storage-not-responding"),
            field="offset",
            remedy=sentence("log-remains-on-node"),
        )

    @classmethod
    def of_missing(cls, *, held: int, end: int) -> "LogUnreadableError":
        return cls(
            sentence("log-part-not-in-storage", held=held, end=end),
            field="offset",
            remedy=sentence("repeat-storage-migration"),
        )


def read_log(
    viewer: Viewer,
    job_id: int,
    *,
    storage: FileStorage,
    role: str = "",
    rank: int = 0,
    attempt: int | None = None,
    offset: int = 0,
    limit: int = 65_536,
) -> LogPiece:
    """Return a piece of one rank's log, by default of the first role in the newest attempt.

    Args:
        viewer: reader, for permissions.
        job_id: the job.
        storage: has the logs.
        role: role of the member; empty for the first one.
        rank: within the role.
        attempt: number; None for the newest that has this rank.
        offset: first byte; inside a character, the next character is the first one.
        limit: maximum number of bytes; characters are never split.

    Raises:
        NotFoundError: the job, role, rank or attempt does not exist or is not visible.
        LogElsewhereError: another host has the bytes at ``offset`` in its own directory.
        LogUnreadableError: the object store does not respond, or lacks the bytes.
    """
    stretch = _Stretch(role=role, rank=rank, attempt=attempt, offset=offset, limit=limit)
    return _read(viewer, job_id, storage, stretch)[0]


def search_log(
    viewer: Viewer,
    job_id: int,
    *,
    wanted: str,
    storage: FileStorage,
    role: str = "",
    rank: int = 0,
    attempt: int | None = None,
    offset: int = 0,
    limit: int = MOST_LOG_BYTES,
) -> tuple[LogPiece, tuple[logs.LogHit, ...]]:
    """Search at most ``limit`` bytes of a log for lines with certain words.

    To search the whole log, repeat from ``next_offset`` until ``end``, or until ``next_offset``
    stays unchanged, which means that the log is still being written.

    Args:
        viewer: reader, for permissions.
        job_id: the job.
        wanted: words of one line, in upper or lower case.
        storage: has the logs.
        role: role of the member; empty for the first one.
        rank: within the role.
        attempt: number; None for the newest that has this rank.
        offset: start of a line, such as the ``next_offset`` of the previous call.
        limit: maximum number of bytes to search.

    Returns:
        The searched range, without its text, and at most 200 lines.

    Raises:
        InvalidError: the words are empty, too long, or of more than one line.
        NotFoundError: the job, role, rank or attempt does not exist or is not visible.
    """
    if not wanted.strip() or len(wanted) > LONGEST_SEARCH or not wanted.isprintable():
        raise InvalidError(
            sentence("log-search-length", most=LONGEST_SEARCH),
            field="q",
            value=wanted[:LONGEST_SEARCH],
            remedy=sentence("use-words-of-line"),
        )
    stretch = _Stretch(role=role, rank=rank, attempt=attempt, offset=offset, limit=limit)
    piece, data = _read(viewer, job_id, storage, stretch)
    found = logs.search(data, wanted, offset=piece.offset, limit=limit, is_last=piece.end)
    return (
        replace(
            piece,
            text="",
            next_offset=piece.offset + found.used,
            end=piece.end and found.used == len(data),
        ),
        found.hits,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stretch:
    role: str
    rank: int
    attempt: int | None
    offset: int
    limit: int


def _read(
    viewer: Viewer, job_id: int, storage: FileStorage, asked: _Stretch
) -> tuple[LogPiece, bytes]:
    """Read a piece of a log, as text and as bytes."""
    job = visible_job(viewer, job_id)
    member = _member(job_id, role=asked.role, rank=asked.rank, attempt=asked.attempt)
    if member is None:
        _require_planned(job.spec, role=asked.role, rank=asked.rank, attempt=asked.attempt)
        first_role = asked.role or next(iter(job.spec.get("roles", {})), "")
        return LogPiece(
            role=first_role, rank=asked.rank, attempt=0, text="", offset=0, next_offset=0,
            size=0, first=0, end=job.is_over,
        ), b""  # fmt: skip
    stream = LogStream.objects.filter(member=member).first() or _stored_first(member, job_id)
    if stream.pruned_at is not None:
        return _empty(member, stream.end), b""
    is_final = stream.closed or member.step == MemberStep.RELEASED
    try:
        return _piece(member, stream, storage, asked.offset, asked.limit, is_final=is_final)
    except StorageUnavailableError as error:
        raise LogUnreadableError.while_unavailable() from error


def _member(job_id: int, *, role: str, rank: int, attempt: int | None) -> Member | None:
    members = Member.objects.filter(attempt__job_id=job_id, rank=rank).select_related("attempt")
    if role:
        members = members.filter(role=role)
    if attempt is not None:
        members = members.filter(attempt__number=attempt)
    return members.order_by("-attempt__number", "node_rank").first()


def _require_planned(
    spec: dict[str, object], *, role: str, rank: int, attempt: int | None
) -> None:
    """Raise an error if the specification of the job does not have this rank."""
    roles = spec.get("roles")
    known = roles if isinstance(roles, dict) else {}
    name = role or next(iter(known), "")
    if name not in known:
        raise NotFoundError(sentence("no-such-role-of-job"), field="role", value=role)
    if rank >= int(known[name].get("instances", 1)):
        raise NotFoundError(sentence("no-such-rank"), field="rank", value=rank)
    if attempt is not None:
        raise NotFoundError(sentence("no-such-attempt"), field="attempt", value=attempt)


def _stored_first(member: Member, job_id: int) -> LogStream:
    """Return the row of a log whose bytes were stored before the row.

    Live updates contain bytes as soon as they are stored. A page that subscribes later fetches
    them here, since no further message may arrive.
    """
    path = logs.relative_path(job_id, member.attempt.number, member.role, member.rank)
    return LogStream(member=member, job_id=job_id, path=path)


def _empty(member: Member, end: int) -> LogPiece:
    return LogPiece(
        role=member.role,
        rank=member.rank,
        attempt=member.attempt.number,
        text="",
        offset=end,
        next_offset=end,
        size=end,
        first=end,
        end=True,
    )


def _piece(
    member: Member,
    stream: LogStream,
    storage: FileStorage,
    offset: int,
    limit: int,
    *,
    is_final: bool,
) -> tuple[LogPiece, bytes]:
    # The preceding bytes show whether the first requested byte is inside a character.
    lead = min(offset, logs.LONGEST_CHARACTER - 1)
    most = max(_LEAST_LOG_BYTES, min(limit, MOST_LOG_BYTES))
    read = storage.logs.read(
        stream.path, offset=offset - lead, limit=lead + most, first=stream.first
    )
    there, begin, found = read.extent, read.offset, read.data
    if there.end < stream.end and offset >= there.end:
        held = max(there.end - there.first, 0)
        if storage.is_shared:
            raise LogUnreadableError.of_missing(held=held, end=stream.end)
        raise LogElsewhereError.of(stream, held)
    before, wanted = found[: max(offset - begin, 0)], found[max(offset - begin, 0) :]
    skipped = logs.continued(before, wanted)
    kept = wanted[skipped:]
    earliest = max(begin, offset)
    # A read past the end returns nothing; the next read starts at the end.
    start = (earliest if wanted else min(earliest, there.end)) + skipped
    is_last = start + len(kept) >= there.end
    if not (is_last and is_final):
        kept = kept[: len(kept) - logs.unfinished(kept)]
    piece = LogPiece(
        role=member.role,
        rank=member.rank,
        attempt=member.attempt.number,
        text=logs.decode(kept),
        offset=start,
        next_offset=start + len(kept),
        size=there.end,
        first=there.first,
        end=is_final and start + len(kept) >= max(there.end, stream.end),
    )
    return piece, kept
