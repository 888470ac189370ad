"""Hybrid parallelism of jobs: profiles of models, grids, and the plans of attempts."""
