"""A database connection that links new audit rows at the end of their transaction.

Appending to a chain needs a lock until the commit. A lock acquired when the row is recorded could
deadlock with other locks of the transaction.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from django.db import Error
from django.db.backends.base.base import BaseDatabaseWrapper


class BeforeCommit:
    """A callback of ``transaction.on_commit`` whose ``act`` runs before the commit instead.

    Django drops it with the savepoint or the transaction that is rolled back.
    """

    def __init__(self, act: Callable[[BaseDatabaseWrapper, list[Any]], None], given: Any) -> None:
        """Args: act: called once with the values of all callbacks of one ``act``, in order."""
        self.act = act
        self.given = given

    def __call__(self) -> None:
        """Do nothing after the commit: the callback has run before it."""


class ChainingMixin(BaseDatabaseWrapper):
    """Runs the callbacks of ``BeforeCommit``."""

    def commit(self) -> None:
        """Run the callbacks, then commit; if one fails, nothing is committed."""
        waiting = [func for _, func, *_ in self.run_on_commit if isinstance(func, BeforeCommit)]
        try:
            for act in dict.fromkeys(mark.act for mark in waiting):
                act(self, [mark.given for mark in waiting if mark.act is act])
        except BaseException:
            with suppress(Error):  # the connection may be lost, which the caller handles
                self.rollback()
            raise
        super().commit()
