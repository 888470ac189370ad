"""When a running job idles: every device, every minute, and only where telemetry says so."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

MINUTE: Final = timedelta(minutes=1)
LONGEST_GAP: Final = timedelta(minutes=3)
"""Without telemetry for longer than this a job counts as busy."""
LEAST_NOTICE: Final = 300
"""Seconds between the warning and the stop, at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdlePolicy:
    """What happens to a job whose devices idle.

    Attributes:
        below: percent; a device idles in a minute in which it was busy for a smaller share.
        warn_after: seconds of idling after which its owner is warned.
        stop_after: seconds of idling after which it is stopped; None: never.
        exempt: nothing happens.
    """

    below: float = 5.0
    warn_after: int = 1800
    stop_after: int | None = 3600
    exempt: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IdlePeriod:
    """A span of minutes in which all devices of a job idled.

    Attributes:
        since: its first minute.
        until: the end of its newest minute.
        warned_at: when the owner was warned; None: not yet.
    """

    since: datetime
    until: datetime
    warned_at: datetime | None = None

    @property
    def seconds(self) -> float:
        """How long it lasts."""
        return (self.until - self.since).total_seconds()


class IdleAction(StrEnum):
    """What is to be done about a spell."""

    NOTHING = "nothing"
    WARN = "warn"
    STOP = "stop"


def follow(
    spell: IdlePeriod | None, minutes: Mapping[datetime, bool], *, now: datetime
) -> IdlePeriod | None:
    """The spell after newer minutes; None where the job does not idle, as far as is known.

    Args:
        spell: as it was after the last look.
        minutes: whether all devices were known and idle, by the minute's start; a minute of which
            nothing is known is missing.
        now: the present.
    """
    for minute in sorted(minutes):
        if spell is not None and minute < spell.until:
            continue
        if not minutes[minute]:
            spell = None
        elif spell is None or minute - spell.until > LONGEST_GAP:
            spell = IdlePeriod(since=minute, until=minute + MINUTE)
        else:
            spell = replace(spell, until=minute + MINUTE)
    if spell is not None and now - spell.until > LONGEST_GAP:
        return None
    return spell


def step_of(spell: IdlePeriod, policy: IdlePolicy, *, now: datetime) -> IdleAction:
    """What the policy wants done: the warning comes first, and the stop no sooner than it said."""
    if policy.exempt or spell.seconds < policy.warn_after:
        return IdleAction.NOTHING
    if spell.warned_at is None:
        return IdleAction.WARN
    ends = stop_at(spell, policy)
    return IdleAction.STOP if ends is not None and now >= ends else IdleAction.NOTHING


def stop_at(spell: IdlePeriod, policy: IdlePolicy) -> datetime | None:
    """When a job that has been warned is stopped if it goes on idling; None: never."""
    if policy.exempt or policy.stop_after is None or spell.warned_at is None:
        return None
    notice = max(policy.stop_after - policy.warn_after, LEAST_NOTICE)
    return spell.warned_at + timedelta(seconds=notice)


def in_force(
    own: IdlePolicy | None, usual: IdlePolicy | None, *, binding: bool = False
) -> IdlePolicy | None:
    """The policy of one job; None: nothing happens.

    Args:
        own: what the job says of itself.
        usual: what its virtual cluster says of jobs that say nothing.
        binding: a job may be stricter than the virtual cluster, and not laxer.
    """
    if own is None or usual is None or not binding:
        return own or usual
    if own.exempt:
        return usual
    stops = [seconds for seconds in (own.stop_after, usual.stop_after) if seconds is not None]
    return IdlePolicy(
        below=max(own.below, usual.below),
        warn_after=min(own.warn_after, usual.warn_after),
        stop_after=min(stops, default=None),
    )
