"""Rows of logs: how far each has been fetched."""

import socket
from collections.abc import Mapping

from workers.models import LogStream
from workers.services import log_files
from workers.services.dispatch import MemberRef


def path_of(rank: MemberRef) -> str:
    """Path of the rank's log below the logs' directory."""
    return log_files.relative_path(rank.job_id, rank.attempt_number, rank.role, rank.rank)


def open_log(rank: MemberRef) -> None:
    """Create the row of the rank's log if it is missing."""
    LogStream.objects.get_or_create(
        member_id=rank.member_id, defaults={"job_id": rank.job_id, "path": path_of(rank)}
    )


def keep_log(rank: MemberRef, *, first: int, end: int, closed: bool) -> None:
    """Store how far a log has been fetched; a closed log does not change."""
    open_log(rank)
    LogStream.objects.filter(member_id=rank.member_id, closed=False).update(
        first=first, end=end, closed=closed, host=socket.gethostname()
    )


def close_logs(ends: Mapping[MemberRef, tuple[int, int]]) -> None:
    """Mark these logs as complete, with their first and end offsets."""
    known = set(
        LogStream.objects.filter(member_id__in=[rank.member_id for rank in ends]).values_list(
            "member_id", flat=True
        )
    )
    LogStream.objects.bulk_create(
        LogStream(
            member_id=rank.member_id,
            job_id=rank.job_id,
            path=path_of(rank),
            first=first,
            end=end,
            closed=True,
            host=socket.gethostname(),
        )
        for rank, (first, end) in ends.items()
        if rank.member_id not in known
    )
    for rank, (first, end) in ends.items():
        if rank.member_id in known:
            keep_log(rank, first=first, end=end, closed=True)
