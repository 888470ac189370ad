"""Fixtures of the tenants' tests."""

from tests.support.databases import migrated_template, real_database

__all__ = ["migrated_template", "real_database"]
