"""Thin programs with Slurm's names and options over the REST API."""
