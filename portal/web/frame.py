"""Values for the frame around a page, set by the view; this module runs no queries."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from django.http import HttpRequest

from scheduling.rounds.queries import RoundTick
from tenants.announcements import AnnouncementRow

ATTRIBUTE: Final = "tessera_frame"


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Facts for the frame of a page.

    Attributes:
        scope: tenant or role next to the user's name.
        counts: grey numbers by the url name of a nav item.
        flags: red numbers by url name: action needed.
        hidden: url names that the reader may not open.
        rounds: the last rounds, oldest first.
        round_age_seconds: since the last round.
        round_seconds: the interval between two rounds.
        round_trouble: reason of a missing round, if known.
        announcements: announcements above the page, newest first.
        may_announce: the reader may write announcements.
        failing: for cluster admins, a sentence for each part that does not work.
    """

    scope: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    flags: Mapping[str, int] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()
    rounds: tuple[RoundTick, ...] = ()
    round_age_seconds: float | None = None
    round_seconds: float = 10.0
    round_trouble: str = ""
    announcements: tuple[AnnouncementRow, ...] = ()
    may_announce: bool = False
    failing: tuple[str, ...] = ()

    @property
    def announcements_open(self) -> tuple[AnnouncementRow, ...]:
        """Return the critical announcements, or the most severe one, newest first."""
        severe = tuple(row for row in self.announcements if row.severity == "critical")
        if severe:
            return severe
        return tuple(sorted(self.announcements, key=lambda row: row.severity != "warning")[:1])

    @property
    def announcements_folded(self) -> tuple[AnnouncementRow, ...]:
        """Return the other announcements, newest first."""
        shown = {row.id for row in self.announcements_open}
        return tuple(row for row in self.announcements if row.id not in shown)


def set_frame(request: HttpRequest, frame: Frame) -> None:
    """Set the facts of the frame for the response to ``request``."""
    setattr(request, ATTRIBUTE, frame)


def get_frame(request: HttpRequest) -> Frame:
    """Return the frame set on this request, or an empty one."""
    found = getattr(request, ATTRIBUTE, None)
    return found if isinstance(found, Frame) else Frame()
