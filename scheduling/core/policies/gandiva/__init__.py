"""Gandiva (OSDI '18): time slices, packing, migration and growth by measured rates."""
