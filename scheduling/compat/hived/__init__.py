"""Importer of HiveD cluster configurations."""
