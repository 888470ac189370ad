"""Importer of dstack tasks and fleets."""
