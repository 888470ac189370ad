"""Synthetic content that fills an installation to the size of the benchmarks."""
