"""One turn: everything that nodes have told is written, and what they must do next is claimed."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.core.exceptions import ObjectDoesNotExist
from django.db import OperationalError, transaction

from workers.conf import WorkerSettings
from workers.services import carrying
from workers.services.dispatch import Order, claim_orders
from workers.services.news import News

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What came of a turn.

    Attributes:
        carried: nodes that this service still carries.
        orders: what they must do next.
        failed: news that could not be written; the rows will be compared with the nodes again.
    """

    carried: frozenset[int]
    orders: tuple[Order, ...] = ()
    failed: tuple[News, ...] = ()


def take_turn(
    *,
    owner: str,
    epochs: Mapping[int, int],
    news: Sequence[News],
    listening: Collection[int],
    busy: Collection[int],
    settings: WorkerSettings,
    now: datetime,
) -> Turn:
    """Write news and claim orders in one transaction, fenced by the nodes' epochs.

    Args:
        owner: this service.
        epochs: the nodes that it carries.
        news: in the order in which they came.
        listening: nodes that take orders now.
        busy: members with an order in hand.
        settings: of the workers.
        now: the instant that is written.

    Raises:
        OperationalError: the database could not be used; nothing was written, try again.
    """
    with transaction.atomic():
        lease = timedelta(seconds=settings.node_lease)
        carried = carrying.hold(owner=owner, epochs=epochs, now=now, lease=lease)
        failed = tuple(
            item for item in news if item.node_id in carried and not _written(item, now)
        )
        ready = carried & frozenset(listening)
        orders = (
            claim_orders(node_ids=ready, busy=busy, settings=settings, now=now) if ready else []
        )
    return Turn(carried=carried, orders=tuple(orders), failed=failed)


def _written(item: News, now: datetime) -> bool:
    """Write one piece of news; one that cannot be written does not take the others with it."""
    try:
        with transaction.atomic():
            item.write(now)
    except OperationalError:
        raise
    except ObjectDoesNotExist as error:
        log.warning("dropped %s of node %s: %s", type(item).__name__, item.node_id, error)
        return False
    except Exception:
        # Whatever is wrong with it: the others must be written, and the rows are compared with the
        # node's runs again.
        log.exception("could not write %s of node %s", type(item).__name__, item.node_id)
        return False
    return True
