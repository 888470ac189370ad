"""A demo cluster, and synthetic content for benchmarks."""
