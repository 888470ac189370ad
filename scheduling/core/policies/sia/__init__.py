"""Sia (SOSP '23): heterogeneity-aware, goodput-optimised scheduling by an integer program."""

from scheduling.core.policies.sia.policy import Sia

__all__ = ["Sia"]
