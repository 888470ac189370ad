"""Cluster configurations of HiveD."""
