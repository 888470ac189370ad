"""Reproductions of published artefacts: their own simulation rules, outside the product."""
