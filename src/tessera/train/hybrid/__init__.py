"""Hybrid parallelism: pipeline, data and tensor parallelism of one training."""
