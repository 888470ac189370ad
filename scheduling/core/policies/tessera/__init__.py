"""Tessera's own policy: completion times over a horizon, with restarts as cost in seconds."""

from scheduling.core.policies.tessera.policy import Tessera

__all__ = ["Tessera"]
