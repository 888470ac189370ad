"""What tests of live updates share: threads that read the database end before it is emptied."""

import threading
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _counting_has_ended() -> Iterator[None]:
    """Wait for the threads of hubs: a table that one reads is locked for the database's reset."""
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("live-hub"):
            thread.join(5)
