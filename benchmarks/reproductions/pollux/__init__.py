"""Pollux's artefact (OSDI '21)."""
