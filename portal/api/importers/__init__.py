"""Readers of other systems' formats: pure text to values, warnings and what has no counterpart."""
