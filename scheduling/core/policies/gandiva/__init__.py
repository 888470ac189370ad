"""Gandiva (OSDI '18): time slices, packing, migration and growing, by what is measured."""
