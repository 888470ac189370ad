"""Rows of logs: how far each has been fetched."""

import socket
from collections.abc import Mapping

from workers.models import LogStream
from workers.services import log_files
from workers.services.dispatch import MemberRef


def path_of(rank: MemberRef) -> str:
    """Where the rank's log lies below the logs' directory."""
    return log_files.relative_path(rank.job_id, rank.attempt_number, rank.role, rank.rank)


def open_log(rank: MemberRef) -> None:
    """See that there is a row for the rank's log."""
    LogStream.objects.get_or_create(
        member_id=rank.member_id, defaults={"job_id": rank.job_id, "path": path_of(rank)}
    )


def keep_log(rank: MemberRef, *, first: int, end: int, closed: bool) -> None:
    """Note how far a log has been fetched; one that is closed stays as it is."""
    open_log(rank)
    LogStream.objects.filter(member_id=rank.member_id, closed=False).update(
        first=first, end=end, closed=closed, host=socket.gethostname()
    )


def close_logs(ends: Mapping[MemberRef, tuple[int, int]]) -> None:
    """Note that nothing more will come to these logs, which were kept from first to end."""
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
