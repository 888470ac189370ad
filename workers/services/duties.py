"""Duties that one process at a time performs, assigned by leases in the database's time."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import DatabaseError

from tenants.clock import MOST_SKEW, database_now
from workers.models import DutyLease
from workers.services.heartbeats import has_ended

logger = logging.getLogger(__name__)

LEASE: Final = timedelta(seconds=9)
"""Lifetime of a duty without renewal."""
RENEW_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A duty that this process holds.

    Attributes:
        is_new: whether the duty was free before, or its lease had expired.
        state: state of the last holder, if the lease is new.
    """

    is_new: bool
    state: Mapping[str, Any]


def take_duty(*, name: str, owner: str, now: datetime, state: Mapping[str, Any]) -> Taken | None:
    """Take or renew a duty; only one of several concurrent processes succeeds.

    The lease of a holder that has ended, or an implausibly late lease, is ignored. A process that
    finds another holder writes nothing.

    Args:
        name: name of the duty.
        owner: this process (``heartbeats.process_name``).
        now: the database's time.
        state: state for the next holder; written if this process holds the duty already.

    Returns:
        None if another process holds it.
    """
    row, _ = DutyLease.objects.get_or_create(name=name, defaults={"expires_at": now})
    in_force = is_in_force(row.expires_at, now)
    if in_force and row.owner not in ("", owner) and not has_ended(row.owner):
        return None
    is_mine = in_force and row.owner == owner
    values: dict[str, Any] = {"owner": owner, "expires_at": now + LEASE}
    if is_mine:
        values["state"] = dict(state)
    as_read = DutyLease.objects.filter(name=name, owner=row.owner, expires_at=row.expires_at)
    if not as_read.update(**values):
        return None
    return Taken(is_new=not is_mine, state={} if is_mine else row.state)


def release_duty(*, name: str, owner: str, now: datetime, state: Mapping[str, Any]) -> None:
    """Release a duty, so that another process can take it at once."""
    DutyLease.objects.filter(name=name, owner=owner).update(
        owner="", expires_at=now, state=dict(state)
    )


def is_in_force(expires_at: datetime, now: datetime) -> bool:
    """Return whether a lease is in force; an implausibly late one is not."""
    return now < expires_at <= now + LEASE + MOST_SKEW


class Duty:
    """A duty of this process, renewed every few seconds while it is in use."""

    def __init__(
        self, name: str, *, owner: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Create a duty that this process does not hold yet.

        Args:
            name: name of the duty.
            owner: this process.
            clock: monotonic, in seconds.
        """
        self._name = name
        self._owner = owner
        self._clock = clock
        self._held_until = float("-inf")
        self._renew_at = float("-inf")

    def hold(
        self, state: Callable[[], Mapping[str, Any]], *, begin: Callable[[Mapping[str, Any]], None]
    ) -> bool:
        """Take or renew the duty if a renewal is due.

        During a database outage, the process holds the duty until its lease expires.

        Args:
            state: state for the next holder.
            begin: is called with the last holder's state when this process takes the duty.

        Returns:
            Whether this process holds it.
        """
        asked_at = self._clock()
        if self._renew_at <= asked_at or asked_at >= self._held_until:
            try:
                taken = take_duty(
                    name=self._name, owner=self._owner, now=database_now(), state=state()
                )
            except DatabaseError as error:
                logger.warning("the lease of duty %s could not be renewed: %s", self._name, error)
                return self._clock() < self._held_until
            if taken is None:
                self._held_until = float("-inf")
                return False
            self._renew_at = asked_at + RENEW_SECONDS
            self._held_until = asked_at + LEASE.total_seconds()
            if taken.is_new:
                begin(taken.state)
        return True

    def release(self, state: Mapping[str, Any]) -> None:
        """Release the duty, so that another process can take it at once."""
        try:
            release_duty(name=self._name, owner=self._owner, now=database_now(), state=state)
        except DatabaseError as error:
            logger.warning(
                "the lease of duty %s could not be released; it expires: %s", self._name, error
            )
