"""Importer of Slurm batch scripts."""
