"""Tessera's own policy: completion times looked at over a horizon, restarts paid in seconds."""

from scheduling.core.policies.tessera.policy import Tessera

__all__ = ["Tessera"]
