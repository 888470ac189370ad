"""PostgreSQL engine; Django requires these names of the module and the class."""

from types import TracebackType

from django.db import OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.postgresql import base
from django.db.utils import DatabaseErrorWrapper
from django.utils.functional import cached_property
from psycopg.errors import IdleInTransactionSessionTimeout

from tenants.engines.chaining import ChainingMixin


class DatabaseWrapper(ChainingMixin, base.DatabaseWrapper):
    """A connection whose commits extend the audit's chain."""

    @cached_property
    def wrap_database_errors(self) -> "_Errors":
        """Return Django's translation of errors, extended by idle timeouts of transactions."""
        return _Errors(self)


class _Errors(DatabaseErrorWrapper):
    """Reports a transaction that the server ended by its idle timeout as a lost connection.

    psycopg reports an internal error, but callers must treat it like a lost server: nothing was
    written, and the transaction may be repeated on a new connection.
    """

    wrapper: BaseDatabaseWrapper

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(exc_value, IdleInTransactionSessionTimeout):
            self.wrapper.errors_occurred = True
            raise OperationalError(*exc_value.args).with_traceback(traceback) from exc_value
        super().__exit__(exc_type, exc_value, traceback)
