"""One turn: everything that nodes have told is written, and what they must do next is claimed."""

import logging
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
    """What came of a turn.

    Attributes:
        carried: nodes that this service still carries.
        directives: what they must do next.
        failed: news that could not be written; the rows will be compared with the nodes again.
    """

    carried: frozenset[int]
    directives: tuple[Directive, ...] = ()
    failed: tuple[NodeReport, ...] = ()


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
    """Write news and claim directives in one transaction, fenced by the nodes' epochs.

    Args:
        owner: this service.
        epochs: the nodes that it carries.
        news: in the order in which they came.
        listening: nodes that take directives now.
        busy: members with a directive in hand.
        settings: of the workers.
        now: the instant that is written.

    Raises:
        OperationalError: the database could not be used; nothing was written, try again.
    """
    with transaction.atomic(), tallies_written_last():
        lease = timedelta(seconds=settings.node_lease)
        carried = node_leases.hold(owner=owner, epochs=epochs, now=now, lease=lease)
        failed = _write([item for item in news if item.node_id in carried], now)
        ready = carried & frozenset(listening)
        directives = (
            claim_directives(node_ids=ready, busy=busy, settings=settings, now=now)
            if ready
            else []
        )
    return Turn(carried=carried, directives=tuple(directives), failed=failed)


def _write(news: Sequence[NodeReport], now: datetime) -> tuple[NodeReport, ...]:
    """Write news kind by kind; returns those that could not be written."""
    failed: list[NodeReport] = []
    for kind, group in groupby(sorted(news, key=lambda item: item.order), key=type):
        items = list(group)
        if not _written(kind, items, now):
            failed += [item for item in items if not _written(kind, [item], now)]
    return tuple(failed)


def _written(kind: type[NodeReport], items: Sequence[NodeReport], now: datetime) -> bool:
    """Write news of one kind; one that cannot be written does not take the others with it."""
    try:
        with transaction.atomic(), tallies_written_last():
            kind.write_all(items, now)
    except OperationalError:
        raise
    except Exception:
        # Whatever is wrong with them: they are tried one by one, and what is left is found again
        # when the rows are compared with the node's runs.
        level = logging.ERROR if len(items) == 1 else logging.WARNING
        log.log(level, "could not write %d %s", len(items), kind.__name__, exc_info=True)
        return False
    return True
