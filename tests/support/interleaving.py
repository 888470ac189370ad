"""Runs something before a chosen query of this thread: a faster process, or a failure."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connection


@contextmanager
def before_query(part: str, action: Callable[[], object], *, number: int = 1) -> Iterator[None]:
    """Call ``action`` once, before a query whose SQL contains ``part``: the first, or a later one.

    An exception of ``action`` is that of the query.
    """
    seen = 0

    def execute_after(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        nonlocal seen
        if part in sql:
            seen += 1
            if seen == number:
                action()
        return execute(sql, params, many, context)

    with connection.execute_wrapper(execute_after):
        yield
    assert seen >= number, f"{seen} queries have {part}"


def raising(error: Exception) -> Callable[[], None]:
    """An action that fails with the error."""

    def fail() -> None:
        raise error

    return fail
