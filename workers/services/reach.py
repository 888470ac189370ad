"""Choice of a service for a node that some services cannot reach; pure functions."""

from collections.abc import Set
from typing import Final, NamedTuple

LONGEST_BACKOFF: Final = 300.0


class Silence(NamedTuple):
    """Time without a message from a node, in seconds.

    Attributes:
        seconds: time since its last message, or since the service took it.
        patience: limit before another service takes it.
        noted: seconds since the record of the silence; None without a record.
    """

    seconds: float
    patience: float
    noted: float | None = None


def others_to_try(service: str, *, living: Set[str], backing_off: Set[str]) -> Set[str]:
    """Return the other services that may reach a node.

    Args:
        service: this service.
        living: services that manage nodes, with or without ``service``.
        backing_off: services that could not reach this node.
    """
    return living - backing_off - {service}


def is_given_up(silence: Silence, *, others: Set[str]) -> bool:
    """Return whether to release a node for other services; a single service retries forever."""
    return bool(others) and silence.seconds >= silence.patience


def may_claim(service: str, *, living: Set[str], backing_off: Set[str]) -> bool:
    """Return whether a service may claim a node without a lease.

    A service in back-off leaves the node to other services, if there are any.
    """
    others = others_to_try(service, living=living, backing_off=backing_off)
    return service not in backing_off or not others


def backoff_seconds(failures: int, first: float) -> float:
    """Return the wait before the next try to reach a node that was given up.

    Args:
        failures: failed tries since then.
        first: the wait before the first try, in seconds.
    """
    return min(first * 2.0 ** min(failures, 16), LONGEST_BACKOFF)
