"""Who carries a node that some services cannot reach, decided without a clock or a database."""

from collections.abc import Set
from typing import Final, NamedTuple

FIRST_BACKOFF: Final = 15.0
LONGEST_BACKOFF: Final = 300.0


class Silence(NamedTuple):
    """How long a service has received nothing from a node, in seconds.

    Attributes:
        seconds: since its last message, or since the service carries it.
        patience: allowed before it is left to another service.
        noted: since it was noted as silent; None if it was not.
    """

    seconds: float
    patience: float
    noted: float | None = None


def others_to_try(service: str, *, living: Set[str], backing_off: Set[str]) -> Set[str]:
    """The other services that may reach a node.

    Args:
        service: the one that asks.
        living: services that carry nodes, with or without ``service``.
        backing_off: services that could not reach this node.
    """
    return living - backing_off - {service}


def is_given_up(silence: Silence, *, others: Set[str]) -> bool:
    """Whether a service leaves a node to the others that may reach it; alone it tries forever."""
    return bool(others) and silence.seconds >= silence.patience


def may_claim(service: str, *, living: Set[str], backing_off: Set[str]) -> bool:
    """Whether a service may take a node that nobody carries.

    One that backs off leaves it to the others, as long as there are any.
    """
    others = others_to_try(service, living=living, backing_off=backing_off)
    return service not in backing_off or not others


def backoff_seconds(failures: int) -> float:
    """How long a service waits before it tries to reach a node that it has given up.

    Args:
        failures: of tries since then.
    """
    return min(FIRST_BACKOFF * 2.0 ** min(failures, 16), LONGEST_BACKOFF)
