"""Sia's artefact (SOSP '23)."""
