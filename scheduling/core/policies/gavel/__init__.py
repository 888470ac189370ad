"""Gavel (OSDI '20): policies as linear programs over fractions of time."""
