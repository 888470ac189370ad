"""Actions after the commit: requests for rounds, and live updates."""

from collections.abc import Iterable
from functools import partial

from django.db import transaction

from scheduling import ports
from scheduling.signals import answers_found, cluster_changed, node_changed, orders_changed


def request_round_on_commit(cause: str) -> None:
    """Request a round once the current transaction has committed."""
    transaction.on_commit(partial(_request_round, cause))


def wake_node_services(node_ids: Iterable[int]) -> None:
    """Wake the services that manage these nodes once the current transaction has committed."""
    ids = frozenset(node_ids)
    if ids:
        transaction.on_commit(partial(orders_changed.send_robust, sender=None, node_ids=ids))


def node_has_changed(node_id: int) -> None:
    """Signal after the commit that a node's state or devices changed."""
    transaction.on_commit(partial(node_changed.send_robust, sender=None, node_id=node_id))


def signal_new_estimates(job_ids: Iterable[int]) -> None:
    """Send the signal ``answers_found`` for these jobs after the commit."""
    ids = tuple(job_ids)
    if ids:
        transaction.on_commit(partial(answers_found.send_robust, sender=None, job_ids=ids))


def _request_round(cause: str) -> None:
    ports.bound().rounds.request(cause)
    cluster_changed.send_robust(sender=None, cause=cause)
