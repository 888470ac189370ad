"""Importers of job formats and cluster configurations of other systems, as pure functions."""
