"""Logs and goodput of jobs as the API shows them."""

from collections.abc import Sequence
from datetime import datetime
from typing import NotRequired, TypedDict

from portal.api.response_models import Body
from workers.selectors import GoodputRow, LogPiece
from workers.services.log_search import Hit


class LogMatchOut(TypedDict):
    """A line that holds what was searched for, and the offset of its first byte."""

    offset: int
    text: str


class LogOut(TypedDict):
    """A piece of a log. Offsets are in bytes and never inside a character.

    ``end`` says that nothing more will come; ``size`` is how far the log has been fetched, and
    ``offset`` where the text really begins (older bytes may not be kept any more). With ``q`` the
    text is empty, and ``matches`` are the lines found between ``offset`` and ``next_offset``.
    """

    text: str
    next_offset: int
    end: bool
    size: int
    offset: int
    role: str
    rank: int
    attempt: int
    matches: NotRequired[list[LogMatchOut]]


class GoodputOut(TypedDict):
    """What an attempt did in one interval; throughput and goodput in samples per second."""

    at: datetime
    attempt: int
    seconds: float
    step: int
    steps: int
    samples: float
    step_seconds: float | None
    loss: float | None
    throughput: float
    efficiency: float
    goodput: float
    devices: int


log_out = Body(LogOut, LogPiece)


def log_found_out(piece: LogPiece, hits: Sequence[Hit]) -> LogOut:
    """Where was looked, and the lines that were found."""
    matches: list[LogMatchOut] = [{"offset": hit.offset, "text": hit.text} for hit in hits]
    return {**log_out(piece), "matches": matches}


goodput_out = Body(GoodputOut, GoodputRow)
