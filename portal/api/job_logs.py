"""Logs and goodput of jobs as the API shows them."""

from datetime import datetime
from typing import TypedDict

from workers.selectors import GoodputRow, LogPiece


class LogOut(TypedDict):
    """A piece of a log. Offsets are in bytes and never inside a character.

    ``end`` says that nothing more will come; ``size`` is how far the log has been fetched, and
    ``offset`` where the text really begins (older bytes may not be kept any more).
    """

    text: str
    next_offset: int
    end: bool
    size: int
    offset: int
    role: str
    rank: int
    attempt: int


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


def log_out(piece: LogPiece) -> LogOut:
    """A piece of a log."""
    return {
        "text": piece.text,
        "next_offset": piece.next_offset,
        "end": piece.end,
        "size": piece.size,
        "offset": piece.offset,
        "role": piece.role,
        "rank": piece.rank,
        "attempt": piece.attempt,
    }


def goodput_out(row: GoodputRow) -> GoodputOut:
    """One interval."""
    return {
        "at": row.at,
        "attempt": row.attempt,
        "seconds": row.seconds,
        "step": row.step,
        "steps": row.steps,
        "samples": row.samples,
        "step_seconds": row.step_seconds,
        "loss": row.loss,
        "throughput": row.throughput,
        "efficiency": row.efficiency,
        "goodput": row.goodput,
        "devices": row.devices,
    }
