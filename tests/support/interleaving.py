"""Runs a function before a chosen query of this thread, as a faster process or a failure."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connection


@contextmanager
def before_query(part: str, action: Callable[[], object], *, number: int = 1) -> Iterator[None]:
    """Call ``action`` once, before a query whose SQL contains ``part``: the first, or a later one.

    The query raises an exception of ``action``.
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
    """Return an action that raises the error."""

    def fail() -> None:
        raise error

    return fail
