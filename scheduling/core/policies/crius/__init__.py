"""Crius (EuroSys '26): types and sizes of large models, by scaling and exchange."""

from scheduling.core.policies.crius.policy import Crius

__all__ = ["Crius"]
