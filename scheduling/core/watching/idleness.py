"""Idle detection of running jobs: per device and minute, only from telemetry."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

MINUTE: Final = timedelta(minutes=1)
LONGEST_GAP: Final = timedelta(minutes=3)
"""Maximum gap in telemetry; after a longer gap, a job counts as busy."""
LEAST_NOTICE: Final = 300
"""Minimum seconds between the warning and the stop."""

Places = frozenset[tuple[int, int]]
"""Devices of a job: IDs of their nodes, and indices."""


class IdleScope(StrEnum):
    """The devices of a job that must be idle together for a warning and a stop."""

    ALL = "all"
    ANY = "any"


@dataclass(frozen=True, slots=True, kw_only=True)
class IdlePolicy:
    """Idle policy of a job's devices.

    Attributes:
        below: percent; a device idles in a minute in which it was busy for a smaller share.
        warn_after: seconds of idling after which its owner is warned.
        stop_after: idle seconds after which the job is stopped; None for never.
        devices: whether all devices of a job must be idle, or any one of them.
        exempt: whether the job is exempt from any action.
    """

    below: float = 5.0
    warn_after: int = 1800
    stop_after: int | None = 3600
    devices: IdleScope = IdleScope.ALL
    exempt: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IdlePeriod:
    """A span of minutes in which devices of a job were idle.

    Attributes:
        devices: devices that were idle in each of its minutes; not empty.
        since: start of its first minute.
        until: end of its newest minute.
        warned_at: time of the warning to the owner; None before it.
    """

    devices: Places
    since: datetime
    until: datetime
    warned_at: datetime | None = None

    @property
    def seconds(self) -> float:
        """Duration in seconds."""
        return (self.until - self.since).total_seconds()


class IdleAction(StrEnum):
    """Action for an idle period."""

    NOTHING = "nothing"
    WARN = "warn"
    STOP = "stop"


def follow(
    spell: IdlePeriod | None, minutes: Mapping[datetime, Places], *, now: datetime
) -> IdlePeriod | None:
    """Update the idle period with newer minutes; return None if the job is not idle or unknown.

    Args:
        spell: idle period after the last check.
        minutes: by start of the minute, the devices that were observed and idle, as far as the
            policy counts them; unobserved minutes are missing.
        now: the present.
    """
    for minute in sorted(minutes):
        if spell is not None and minute < spell.until:
            continue
        idle = minutes[minute]
        if not idle:
            spell = None
        elif spell is None or minute - spell.until > LONGEST_GAP or spell.devices.isdisjoint(idle):
            spell = IdlePeriod(devices=idle, since=minute, until=minute + MINUTE)
        else:
            spell = replace(spell, devices=spell.devices & idle, until=minute + MINUTE)
    if spell is not None and now - spell.until > LONGEST_GAP:
        return None
    return spell


def step_of(spell: IdlePeriod, policy: IdlePolicy, *, now: datetime) -> IdleAction:
    """Return the next action: the warning first, and the stop not before its announced time."""
    if policy.exempt or spell.seconds < policy.warn_after:
        return IdleAction.NOTHING
    if spell.warned_at is None:
        return IdleAction.WARN
    ends = stop_at(spell, policy)
    return IdleAction.STOP if ends is not None and now >= ends else IdleAction.NOTHING


def stop_at(spell: IdlePeriod, policy: IdlePolicy) -> datetime | None:
    """Return the time at which a warned job is stopped if it remains idle, or None."""
    if policy.exempt or policy.stop_after is None or spell.warned_at is None:
        return None
    notice = max(policy.stop_after - policy.warn_after, LEAST_NOTICE)
    return spell.warned_at + timedelta(seconds=notice)


def in_force(
    own: IdlePolicy | None, usual: IdlePolicy | None, *, binding: bool = False
) -> IdlePolicy | None:
    """Return the policy in force for one job, or None for no action.

    Args:
        own: policy of the job.
        usual: default policy of its virtual cluster.
        binding: whether jobs may only tighten the virtual cluster's policy.
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
        devices=IdleScope.ANY if IdleScope.ANY in (own.devices, usual.devices) else IdleScope.ALL,
    )
