"""One turn of a node service: writes reports of nodes and claims the next directives."""

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby

from django.db import OperationalError, transaction

from scheduling.runs.services.tallies import tallies_written_last
from workers.conf import WorkerSettings
from workers.services import node_leases
from workers.services.dispatch import Directive, claim_directives
from workers.services.node_reports import NodeReport

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Result of a turn.

    Attributes:
        carried: nodes that this service still manages.
        directives: directives for these nodes.
        failed: unwritten reports; rows and nodes will be reconciled again.
        quick_seconds, slow_seconds: time of the reports that are not slow, and of the slow ones.
    """

    carried: frozenset[int]
    directives: tuple[Directive, ...] = ()
    failed: tuple[NodeReport, ...] = ()
    quick_seconds: float = 0.0
    slow_seconds: float = 0.0


def take_turn(
    *,
    owner: str,
    epochs: Mapping[int, int],
    news: Sequence[NodeReport],
    listening: Collection[int],
    busy: Collection[int],
    settings: WorkerSettings,
    now: datetime,
) -> Turn:
    """Write reports and claim directives in one transaction, fenced by the nodes' epochs.

    Args:
        owner: this service.
        epochs: the nodes that it manages.
        news: reports in order of arrival.
        listening: nodes that accept directives now.
        busy: members with a directive in progress.
        settings: settings of the workers.
        now: time to store.

    Raises:
        OperationalError: the database is not available; nothing was written, retry.
    """
    with transaction.atomic(), tallies_written_last():
        lease = timedelta(seconds=settings.node_lease)
        carried = node_leases.hold(owner=owner, epochs=epochs, now=now, lease=lease)
        news = [item for item in news if item.node_id in carried]
        begun = time.monotonic()
        failed = _write([item for item in news if item.is_slow], now)
        slow_seconds = time.monotonic() - begun
        begun = time.monotonic()
        failed += _write([item for item in news if not item.is_slow], now)
        quick_seconds = time.monotonic() - begun
        ready = carried & frozenset(listening)
        directives = (
            claim_directives(node_ids=ready, busy=busy, settings=settings, now=now)
            if ready
            else []
        )
    return Turn(
        carried=carried,
        directives=tuple(directives),
        failed=failed,
        quick_seconds=quick_seconds,
        slow_seconds=slow_seconds,
    )


def _write(news: Sequence[NodeReport], now: datetime) -> tuple[NodeReport, ...]:
    """Write reports by kind, and return those not written."""
    failed: list[NodeReport] = []
    for kind, group in groupby(sorted(news, key=lambda item: item.order), key=type):
        items = list(group)
        if not _written(kind, items, now):
            failed += [item for item in items if not _written(kind, [item], now)]
    return tuple(failed)


def _written(kind: type[NodeReport], items: Sequence[NodeReport], now: datetime) -> bool:
    """Write reports of one kind; a failing report does not affect the others."""
    try:
        with transaction.atomic(), tallies_written_last():
            kind.write_all(items, now)
    except OperationalError:
        raise
    except Exception:
        # After any error, the reports are retried one by one; missed facts are found by the next
        # comparison of rows and runs.
        level = logging.ERROR if len(items) == 1 else logging.WARNING
        log.log(level, "could not write %d %s", len(items), kind.__name__, exc_info=True)
        return False
    return True
